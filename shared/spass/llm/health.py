"""Which backends are down, as far as this process has seen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spass.llm.errors import BackendFailed, BackendRateLimited

_FIRST_COOLING: Final = 1.0
_LONGEST_ASKED: Final = 900.0  # what a provider asks for beyond that is not believed


@dataclass(slots=True)
class _Trouble:
    """A backend that failed ``times`` in a row is left alone until ``until`` and is then probed by one request. Requests of fewer
    than ``size`` tokens go on: a rate limit that has no room for one request may have room for a smaller one."""

    times: int
    until: float
    size: int
    probed: bool = False


class Health:
    """Hold what this process has seen of its backends. A backend that fails is left alone for a while: a second, then twice as
    long with every further failure, up to ``longest``, or as long as it asks for. Then one request may try it, and only when that
    succeeds may all.

    ``size`` is the number of tokens that a request is expected to take.
    """

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._longest = longest
        self._clock = clock
        self._troubles: dict[str, _Trouble] = {}

    def down_until(self, backend: str, size: int) -> float | None:
        """Return the moment at which ``backend`` may be tried again, or None if it may be tried now. While another request probes
        it, that moment is not known, and the one returned lies some time ahead."""
        trouble = self._trouble(backend, size)
        if trouble is None:
            return None
        if trouble.probed:
            return max(trouble.until, self._clock() + _FIRST_COOLING)
        return trouble.until if trouble.until > self._clock() else None

    @contextmanager
    def trying(self, backend: str, size: int) -> Iterator[None]:
        """Try ``backend`` while the body runs. If this is a probe that ends without anybody knowing how the backend is, the next
        request probes it."""
        trouble = self._trouble(backend, size)
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
        if self._trouble(backend, size) is not None:
            del self._troubles[backend]

    def failed(self, backend: str, failure: BackendFailed, size: int) -> None:
        size = size if isinstance(failure, BackendRateLimited) else 0
        before = self._troubles.get(backend)
        now = self._clock()
        if before is None or size < before.size:
            times = 1
        elif before.until <= now or before.probed:
            times = before.times + 1
        elif size == before.size:
            times = before.times  # requests that were under way together tell of one failure
        else:
            return  # what a larger request meets says nothing about smaller ones
        cooling = min(self._longest, _FIRST_COOLING * 2.0 ** (times - 1))
        if failure.retry_after is not None:
            cooling = max(cooling, min(failure.retry_after, _LONGEST_ASKED))
        self._troubles[backend] = _Trouble(times, now + cooling, size)

    def _trouble(self, backend: str, size: int) -> _Trouble | None:
        """Return what is known of ``backend`` that concerns a request of ``size``."""
        trouble = self._troubles.get(backend)
        return trouble if trouble is not None and size >= trouble.size else None
