"""Find the interpreter that compiles a bundle's byte code. Byte code works only with the Python version that compiled it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PROBE = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.version_info.releaselevel)"


@cache
def find_interpreter(version: str) -> Path | None:
    """Return a released CPython of this version (``3.13``) on this machine, or None.

    Look at the running interpreter, at ``python3.13``, ``python3`` and ``python`` on the PATH, and at the versions that pyenv and
    uv installed, which are often not on the PATH. Run each candidate: a version manager also puts names on the PATH that only
    print an error.
    """
    return next((candidate for candidate in _candidates(version) if _is_released(candidate, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    for name in (f"python{version}", "python3", "python"):
        if found := shutil.which(name):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    yield from sorted(uv.glob(f"cpython-{version}.*/bin/python{version}"))


def _is_released(candidate: Path, version: str) -> bool:
    # An alpha or beta of the same version compiles different byte code.
    try:
        done = subprocess.run([candidate, "-I", "-c", _PROBE], check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.split() == ["cpython", version, "final"]
