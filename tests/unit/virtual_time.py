"""An event loop with virtual time: when all tasks wait, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import pytest

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_REAL_STEP: Final = 0.01
_VIRTUAL_STEP: Final = 0.05
"""While the loop waits for a thread or a process, its clock advances by this many seconds in each of those real ones."""


class _SkippingSelector(selectors.DefaultSelector):
    """A selector that advances the clock of its loop instead of waiting for the next timer."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready and self._waits_outside():
            ready, timeout = super().select(_REAL_STEP), min(timeout, _VIRTUAL_STEP)
        if not ready:
            self.loop.moment += timeout
        return ready

    def _waits_outside(self) -> bool:
        """Return True while a thread works or a pipe of a process is open. The loop's own pipe is always open."""
        return bool(self.loop.in_threads) or len(self.get_map()) > 1


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. While a thread works or a process runs, it goes a few times as fast as the clock."""

    def __init__(self) -> None:
        self.moment = 1_000.0
        self.in_threads = set[asyncio.Future[Any]]()
        selector = _SkippingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.moment

    def run_in_executor(self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> "asyncio.Future[T]":
        future = super().run_in_executor(executor, func, *args)
        self.in_threads.add(future)
        future.add_done_callback(self.in_threads.discard)
        return future


BACKEND: Final[tuple[str, dict[str, type[VirtualLoop]]]] = ("asyncio", {"loop_factory": VirtualLoop})
"""The value of the fixture ``anyio_backend`` of tests that run on this loop."""


@pytest.fixture
def virtual_time() -> tuple[str, dict[str, type[VirtualLoop]]]:
    """Be the fixture ``anyio_backend`` of a module whose tests run on this loop: ``anyio_backend = virtual_time``."""
    return BACKEND
