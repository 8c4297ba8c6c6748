"""Read provider keys from the environment, or from encrypted parameters in SSM that the operator created."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spass.core.errors import InternalError, StorageUnavailable
from spass.redaction.log import failure_line, write_line

ReadParameters: TypeAlias = Callable[[Sequence[str]], Mapping[str, str]]
"""Return the values of up to ten parameters by name, without those that do not exist. It does not retry."""

_KEEP_SECONDS: Final = 300.0
_RETRY_STALE_SECONDS: Final = 10.0
_MAX_NAMES: Final = 10  # the limit of GetParameters
# The default quota of an account is 40 calls a second, so 400 functions that start together need ten seconds. Lambda allows a
# start only ten seconds. So a start waits for at most four seconds, and the first request waits for the rest.
_START_SECONDS: Final = 4.0
_REQUEST_SECONDS: Final = 30.0
_FIRST_DELAY: Final = 0.25
_MAX_DELAY: Final = 2.0


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """The clock, the sleep and the jitter of retries. ``clock`` is the wall clock, in seconds, because a monotonic clock may stop
    during a snapshot. ``jitter`` returns 0.0 to 1.0."""

    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


class ProviderKeys:
    """Look up the provider keys ``names``: in the environment, then in the SSM SecureString ``<path><name>``, if there is a path.

    All parameters are read together and kept for five minutes. An empty value counts as missing.
    """

    def __init__(
        self, names: Iterable[str], path: str | None, read: ReadParameters, *, timing: RetryTiming | None = None
    ) -> None:
        self._names = sorted(set(names))
        self._path = path
        self._read_parameters = read
        self._timing = timing or RetryTiming()
        self._lock = threading.Lock()
        self._values: Mapping[str, str] | None = None
        self._stale_at = 0.0

    def prefetch(self, names: Iterable[str]) -> None:
        """Read the parameters while the process starts, if one of ``names`` is not in the environment. This takes at most 4
        seconds. If it fails, log a warning; the first ``get`` reads again."""
        if not self._path or all(os.environ.get(name) for name in names):
            return
        try:
            with self._lock:
                self._read(self._path, _START_SECONDS)
        except (StorageUnavailable, InternalError) as error:
            _log_read_failure(error)

    def get(self, name: str) -> str | None:
        """Return the key, or None if it is not set. This may block for 30 seconds while nothing has been read yet.

        Raises:
            StorageUnavailable: the parameter store does not answer, or throttles through all retries.
            InternalError: the parameter store refuses the call.
        """
        if (value := os.environ.get(name)) or not self._path:
            return value or None
        with self._lock:
            return self._current(self._path).get(self._path + name) or None

    def values_read(self) -> list[str]:
        """Return the keys that were read from the parameter store, for redaction. They must not leave the process."""
        return [value for value in (self._values or {}).values() if value]

    def _current(self, path: str) -> Mapping[str, str]:
        """Return the values. Read stale values again, but use them if that fails: a request must not wait for a key that is never
        set."""
        if self._values is None:
            return self._read(path, _REQUEST_SECONDS)
        if self._timing.clock() < self._stale_at:
            return self._values
        try:
            return self._read(path, 0.0)
        except (StorageUnavailable, InternalError) as error:
            _log_read_failure(error)
            self._stale_at = self._timing.clock() + _RETRY_STALE_SECONDS
            return self._values

    def _read(self, path: str, seconds: float) -> Mapping[str, str]:
        """Read all parameters whose variables are not set. Retry with jitter for ``seconds``, if the store throttles."""
        timing = self._timing
        until = timing.clock() + seconds
        max_delay = _FIRST_DELAY
        while True:
            try:
                self._values = self._read_once(path)
            except StorageUnavailable:
                delay = timing.jitter() * max_delay
                if timing.clock() + delay >= until:
                    raise
                timing.sleep(delay)
                max_delay = min(_MAX_DELAY, 2 * max_delay)
            else:
                self._stale_at = timing.clock() + _KEEP_SECONDS
                return self._values

    def _read_once(self, path: str) -> Mapping[str, str]:
        parameters = [path + name for name in self._names if not os.environ.get(name)]
        calls = [self._read_parameters(parameters[at : at + _MAX_NAMES]) for at in range(0, len(parameters), _MAX_NAMES)]
        return {name: value for call in calls for name, value in call.items()}


def _log_read_failure(error: Exception) -> None:
    write_line({**failure_line(error, ""), "level": "warning", "event": "provider_keys_read_failed"})
