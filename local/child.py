"""`python -m local.child <module> [argument …]`: run a module that stops cleanly when its parent process ends.

Standard input is a pipe that only the parent keeps open. When it closes, the parent has ended, even if something killed it. This
process then sends itself SIGTERM, as the parent would, and kills its process group after 20 s.
"""

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final, NoReturn

_STOP_SECONDS: Final = 20.0


def main() -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        _exit_now(error.code)
    _exit_now(None)


def _exit_now(code: str | int | None) -> NoReturn:
    """Exit without waiting for threads: the module has cleaned up, and a thread may block forever."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _follow_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
