"""An event loop whose clock jumps to the next timer whenever there is nothing else to do: hours pass in no time."""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.loop.moment += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Only for work without threads and sockets to others: it would not wait for them."""

    def __init__(self) -> None:
        self.moment = 1_000.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.moment


BACKEND = ("asyncio", {"loop_factory": VirtualLoop})
"""What the fixture ``anyio_backend`` gives where a module's tests run on it."""
