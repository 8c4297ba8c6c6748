"""`python -m local.child <module> [argument …]`: run a module that stops in order when its parent is gone.

Standard input is a pipe that only the parent holds open. When it closes the parent has ended, perhaps killed: this process then
asks itself to stop, as the parent would have, and ends by force when that takes too long.
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
    except SystemExit as ended:
        _exit_now(ended.code)
    _exit_now(None)


def _exit_now(code: str | int | None) -> NoReturn:
    """End at once: what the module had to put in order it has, and its threads may wait for what never comes."""
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
