"""An event loop whose time passes only while everybody waits, and then at once."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SkippingLoop(asyncio.SelectorEventLoop):
    """Starts at the real clock's time, so that deadlines made of it mean something."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self.now


class _Skipping(selectors.DefaultSelector):
    """Instead of waiting for the next timer, it lets its time come. With no timer it waits: for a thread, say."""

    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._loop.now += timeout
            timeout = 0
        return super().select(timeout)


def run_with_virtual_time(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What ``work`` returns, and how many seconds it took in its own time."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        began = loop.time()
        return runner.run(work), loop.time() - began
