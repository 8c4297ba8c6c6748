"""Run work on an event loop with virtual time: when all tasks wait, the clock jumps to the next timer."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. It starts at the real time, because deadlines use the real clock."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.now


class _SkippingSelector(selectors.DefaultSelector):
    """A selector that advances the clock to the next timer. Without a timer it waits, for example for a thread."""

    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._loop.now += timeout
            timeout = 0
        return super().select(timeout)


def run_with_virtual_time(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Return the result of ``work`` and its duration in virtual seconds."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        start = loop.time()
        return runner.run(work), loop.time() - start
