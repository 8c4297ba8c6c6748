"""Stop requests to failing backends for a cooldown. Each process counts only the failures of its own requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spass.models.errors import AttemptFailed, BackendRateLimited

_INITIAL_COOLDOWN: Final = 1.0  # seconds
_MAX_RETRY_AFTER: Final = 900.0
"""Seconds. A provider's longer retry-after is cut to this."""


@dataclass(slots=True)
class _OpenCircuit:
    """The state of a backend after ``failures`` in a row. No request is sent before ``open_until``; then one request probes it.

    Requests of fewer than ``min_tokens`` tokens are still sent: a rate limit that rejects one request may accept a smaller one.
    """

    failures: int
    open_until: float
    min_tokens: int
    probing: bool = False


class CircuitBreaker:
    """One circuit per backend, for this process.

    No requests go to a failing backend during a cooldown: 1 second, doubled by every further failure up to ``max_cooldown``
    seconds, or longer if the backend asks for it. Then one request probes the backend. If the probe succeeds, the circuit closes.
    ``size`` is the expected number of tokens of a request.
    """

    def __init__(self, max_cooldown: float, clock: Callable[[], float]) -> None:
        self._max_cooldown = max_cooldown
        self._clock = clock
        self._circuits: dict[str, _OpenCircuit] = {}

    def open_until(self, backend: str, size: int) -> float | None:
        """Return the time from which ``backend`` may be attempted, or None for now. It is in the future during a probe."""
        circuit = self._circuit_for(backend, size)
        if circuit is None:
            return None
        if circuit.probing:
            return max(circuit.open_until, self._clock() + _INITIAL_COOLDOWN)
        return circuit.open_until if circuit.open_until > self._clock() else None

    @contextmanager
    def attempt(self, backend: str, size: int) -> Iterator[None]:
        """Run the body as the probe if the cooldown of ``backend`` is over. If it records no result, the next request probes."""
        circuit = self._circuit_for(backend, size)
        probes = circuit is not None and not circuit.probing and circuit.open_until <= self._clock()
        if circuit is None or not probes:
            yield
            return
        circuit.probing = True
        try:
            yield
        finally:
            circuit.probing = False

    def record_success(self, backend: str, size: int) -> None:
        if self._circuit_for(backend, size) is not None:
            del self._circuits[backend]

    def record_failure(self, backend: str, failure: AttemptFailed, size: int) -> None:
        size = size if isinstance(failure, BackendRateLimited) else 0
        before = self._circuits.get(backend)
        now = self._clock()
        if before is None or size < before.min_tokens:
            failures = 1
        elif before.open_until <= now or before.probing:
            failures = before.failures + 1
        elif size == before.min_tokens:
            failures = before.failures  # requests that were in flight together report one failure
        else:
            return  # the failure of a larger request says nothing about smaller ones
        cooldown = min(self._max_cooldown, _INITIAL_COOLDOWN * 2.0 ** (failures - 1))
        if failure.retry_after is not None:
            cooldown = max(cooldown, min(failure.retry_after, _MAX_RETRY_AFTER))
        self._circuits[backend] = _OpenCircuit(failures, now + cooldown, size)

    def _circuit_for(self, backend: str, size: int) -> _OpenCircuit | None:
        """Return the circuit of ``backend`` if it is open for a request of ``size`` tokens."""
        circuit = self._circuits.get(backend)
        return circuit if circuit is not None and size >= circuit.min_tokens else None
