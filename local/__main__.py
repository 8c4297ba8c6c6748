"""`python -m local` (`make run`): the whole gateway on this machine, until Ctrl-C."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    # Set the handlers before the slow imports: until a child process runs, there is nothing to clean up.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_now)
    from local.gateway import main as serve

    return serve()


def _exit_now(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    code = main()
    # Cleanup is complete. Do not wait for threads of workers that were cut off.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
