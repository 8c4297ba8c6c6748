"""Which backends are down, as far as this process has seen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spass.llm.errors import BackendFailed

_FIRST_COOLING: Final = 1.0
_LONGEST_ASKED: Final = 900.0  # what a provider asks for beyond that is not believed


@dataclass(slots=True)
class _Trouble:
    """A backend that failed ``times`` in a row, has peace until ``until`` and is then probed by one request."""

    times: int
    until: float
    probed: bool = False


class Health:
    """One for the process. A backend that fails is left alone for a while: a second, then twice as long with every further
    failure, up to ``longest``, or as long as it asks for. Then one request may try it, and only when that succeeds may all."""

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._longest = longest
        self._clock = clock
        self._troubles: dict[str, _Trouble] = {}

    def down_until(self, backend: str) -> float | None:
        """The moment at which ``backend`` may be tried again; None if it may be now. While another request probes it, nobody
        knows when: some time later."""
        trouble = self._troubles.get(backend)
        if trouble is None:
            return None
        if trouble.probed:
            return max(trouble.until, self._clock() + _FIRST_COOLING)
        return trouble.until if trouble.until > self._clock() else None

    @contextmanager
    def trying(self, backend: str) -> Iterator[None]:
        """A request tries ``backend`` while the body runs. If it is a probe that ends without anybody knowing how the backend is,
        the next request probes it."""
        trouble = self._troubles.get(backend)
        probes = trouble is not None and not trouble.probed and trouble.until <= self._clock()
        if trouble is None or not probes:
            yield
            return
        trouble.probed = True
        try:
            yield
        finally:
            trouble.probed = False

    def answered(self, backend: str) -> None:
        self._troubles.pop(backend, None)

    def failed(self, backend: str, failure: BackendFailed) -> None:
        before = self._troubles.get(backend)
        now = self._clock()
        if before is not None and before.until > now and not before.probed:
            times = before.times  # requests that were under way together tell of one failure
        else:
            times = before.times + 1 if before else 1
        cooling = min(self._longest, _FIRST_COOLING * 2.0 ** (times - 1))
        if failure.retry_after is not None:
            cooling = max(cooling, min(failure.retry_after, _LONGEST_ASKED))
        self._troubles[backend] = _Trouble(times, now + cooling)
