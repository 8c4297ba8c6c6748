"""`python -m local` (`make run`): the whole gateway on this machine, until Ctrl-C."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    # Before anything heavy is imported: until a child runs there is nothing to put in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_now)
    from local.gateway import main as serve

    return serve()


def _exit_now(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    code = main()
    # Everything is in order, and what a worker left in the middle is not waited for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
