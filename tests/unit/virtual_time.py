"""An event loop with virtual time: when all tasks wait, its clock jumps to the next timer."""

import asyncio
import selectors
from typing import Final

import pytest


class _SkippingSelector(selectors.DefaultSelector):
    """A selector that advances the clock of its loop instead of waiting for the next timer."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.loop.moment += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. It does not wait for threads and sockets, so the work must not use them."""

    def __init__(self) -> None:
        self.moment = 1_000.0
        selector = _SkippingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.moment


BACKEND: Final[tuple[str, dict[str, type[VirtualLoop]]]] = ("asyncio", {"loop_factory": VirtualLoop})
"""The value of the fixture ``anyio_backend`` of tests that run on this loop."""


@pytest.fixture
def virtual_time() -> tuple[str, dict[str, type[VirtualLoop]]]:
    """Be the fixture ``anyio_backend`` of a module whose tests run on this loop: ``anyio_backend = virtual_time``."""
    return BACKEND
