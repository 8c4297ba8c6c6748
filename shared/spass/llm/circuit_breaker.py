"""Which backends are down, as far as this process has seen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spass.llm.errors import BackendError, BackendRateLimited

_INITIAL_COOLDOWN: Final = 1.0
_MAX_RETRY_AFTER: Final = 900.0  # what a provider asks for beyond that is not believed


@dataclass(slots=True)
class _OpenCircuit:
    """A backend that failed ``times`` in a row is left alone until ``until`` and is then probed by one request. Requests of fewer
    than ``size`` tokens go on: a rate limit that has no room for one request may have room for a smaller one."""

    times: int
    until: float
    size: int
    probed: bool = False


class CircuitBreaker:
    """Hold what this process has seen of its backends. A backend that fails is left alone for a while: a second, then twice as
    long with every further failure, up to ``longest``, or as long as it asks for. Then one request may try it, and only when that
    succeeds may all.

    ``size`` is the number of tokens that a request is expected to take.
    """

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._longest = longest
        self._clock = clock
        self._circuits: dict[str, _OpenCircuit] = {}

    def open_until(self, backend: str, size: int) -> float | None:
        """Return the moment at which ``backend`` may be tried again, or None if it may be tried now. While another request probes
        it, that moment is not known, and the one returned lies some time ahead."""
        trouble = self._circuit_for(backend, size)
        if trouble is None:
            return None
        if trouble.probed:
            return max(trouble.until, self._clock() + _INITIAL_COOLDOWN)
        return trouble.until if trouble.until > self._clock() else None

    @contextmanager
    def trying(self, backend: str, size: int) -> Iterator[None]:
        """Try ``backend`` while the body runs. If this is a probe that ends without anybody knowing how the backend is, the next
        request probes it."""
        trouble = self._circuit_for(backend, size)
        probes = trouble is not None and not trouble.probed and trouble.until <= self._clock()
        if trouble is None or not probes:
            yield
            return
        trouble.probed = True
        try:
            yield
        finally:
            trouble.probed = False

    def answered(self, backend: str, size: int) -> None:
        if self._circuit_for(backend, size) is not None:
            del self._circuits[backend]

    def failed(self, backend: str, failure: BackendError, size: int) -> None:
        size = size if isinstance(failure, BackendRateLimited) else 0
        before = self._circuits.get(backend)
        now = self._clock()
        if before is None or size < before.size:
            times = 1
        elif before.until <= now or before.probed:
            times = before.times + 1
        elif size == before.size:
            times = before.times  # requests that were under way together tell of one failure
        else:
            return  # what a larger request meets says nothing about smaller ones
        cooling = min(self._longest, _INITIAL_COOLDOWN * 2.0 ** (times - 1))
        if failure.retry_after is not None:
            cooling = max(cooling, min(failure.retry_after, _MAX_RETRY_AFTER))
        self._circuits[backend] = _OpenCircuit(times, now + cooling, size)

    def _circuit_for(self, backend: str, size: int) -> _OpenCircuit | None:
        """Return what is known of ``backend`` that concerns a request of ``size``."""
        trouble = self._circuits.get(backend)
        return trouble if trouble is not None and size >= trouble.size else None
