"""Run cells in one confined process: ``python -s -P -S -X utf8 <this folder>/__main__.py``, with ``PYTHONHASHSEED=0``.

The current folder is the scratch folder. Stdin and stdout carry the protocol; ``program.py`` tells its lines.
"""

import sys


def find_siblings() -> None:
    """Let this folder be imported as ``spass.sandbox.child``, although the rest of the library is not installed here."""
    folder = __file__.rpartition("/")[0]
    package = None
    for name in ("spass", "spass.sandbox", "spass.sandbox.child"):
        package = type(sys)(name)
        package.__path__ = []
        sys.modules[name] = package
    if package is not None:
        package.__path__ = [folder]


if __name__ == "__main__":
    find_siblings()

    from spass.sandbox.child.program import main

    sys.dont_write_bytecode = True  # a start without compiled modules takes twice as long; what cells import is not ours to write
    main()
