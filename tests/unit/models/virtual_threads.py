"""Run threads on one virtual clock: one thread runs at a time, and when all sleep, the clock jumps to the next wake-up."""

import threading
from collections.abc import Callable, Sequence
from heapq import heappop, heappush


class VirtualThreads:
    """Threads on a virtual clock. Their work uses ``clock`` and ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._turns = 0
        self._idle = threading.Event()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        woken = threading.Event()
        self._wait(seconds, woken)
        self._idle.set()
        woken.wait()

    def run(self, works: Sequence[tuple[float, Callable[[], None]]]) -> None:
        """Start each work at its second, and run until all have ended."""
        for second, work in works:
            woken = threading.Event()
            self._wait(second, woken)
            threading.Thread(target=self._run, args=[woken, work], daemon=True).start()
        while self._asleep:
            self.now, _, woken = heappop(self._asleep)
            self._idle.clear()
            woken.set()
            self._idle.wait()

    def _run(self, woken: threading.Event, work: Callable[[], None]) -> None:
        woken.wait()
        try:
            work()
        finally:
            self._idle.set()

    def _wait(self, seconds: float, woken: threading.Event) -> None:
        self._turns += 1
        heappush(self._asleep, (self.now + seconds, self._turns, woken))
