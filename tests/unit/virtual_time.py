"""An event loop with virtual time: when all tasks wait, its clock jumps to the next timer."""

import asyncio
import selectors


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


BACKEND = ("asyncio", {"loop_factory": VirtualLoop})
"""The value of the fixture ``anyio_backend`` in modules whose tests run on this loop."""
