"""One execution of a run by one worker, and the end of a run that fails."""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spass.core.cost import CostTally
from spass.core.errors import GATEWAY_STOPPED, RateLimited, SessionBusy, SpassError, StorageUnavailable
from spass.core.messages import Json
from spass.core.time import Clock, epoch_s
from spass.managed.records import MAX_ATTEMPTS, Run
from spass.managed.run_end import fail
from spass.managed.sending import take_back
from spass.store.jobs import MAX_DELAY_SECONDS
from spass.store.tenant_store import TenantStore

_PASSING: Final = (StorageUnavailable, SessionBusy)
"""Errors after which a queued run is executed again: they say nothing about the run."""
_DELAYS: Final = (0.1, 0.4, 1.0)  # seconds before each retry
_PATIENCE_SECONDS: Final = 24 * 3600
"""Age in seconds of a run that is not put back any more because of a rate limit."""
_DEFAULT_DELAY: Final = 60.0
_MAX_DOUBLINGS: Final = 10
"""Doublings of the delay of a run that has paid for an embedding; ``MAX_DELAY_SECONDS`` bounds it before that."""
_JITTER_SECONDS: Final = 5
"""Runs that wait for the same minute must not all come back at that moment."""


@dataclass(slots=True)
class Execution:
    """One execution of ``run``. A failure ends the run, unless the queue delivers it again (``may_retry``) and that may help.

    ``tally`` counts its model calls. ``is_over``: a failure has ended the run. ``put_back_for``: the run is queued once more, and
    must be delivered after so many seconds.
    """

    store: TenantStore
    run: Run
    clock: Clock
    may_retry: bool
    tally: CostTally | None = None
    is_over: bool = False
    put_back_for: int | None = None

    async def fail(self, error: SpassError, rendered: Mapping[str, Json]) -> bool:
        """End the run as failed. If the table does not answer, the next request, tick or sweep that reads the run ends it. Return
        True if the run was put back instead, as if it had not begun."""
        if self._may_wait(error) and await self._put_back(error):
            return True
        is_passing = isinstance(error, _PASSING) or error is GATEWAY_STOPPED
        if is_passing and self.may_retry and self.run.attempts < MAX_ATTEMPTS:
            return False
        for delay in (*_DELAYS, None):
            try:
                ended = await fail(self.store, self.run, rendered, self.clock())
            except StorageUnavailable:
                if delay is not None:
                    await asyncio.sleep(delay)
            else:
                self.is_over = ended is None or ended.status.is_final
                return False
        return False

    def _may_wait(self, error: SpassError) -> bool:
        """Return whether the run met a rate limit before it has acted, so that nothing is lost or repeated if it waits."""
        if not (self.may_retry and isinstance(error, RateLimited)) or self.tally is None or self.tally.has_acted:
            return False
        return self.clock() < epoch_s(self.run.created_at) + _PATIENCE_SECONDS

    async def _put_back(self, error: SpassError) -> bool:
        wait = _DEFAULT_DELAY if error.retry_after is None else error.retry_after
        if self.tally is not None and self.tally.total.sub_calls:  # its embedding is paid again each time, so that is less often
            wait = max(wait, 1.0) * 2 ** min(self.run.put_backs, _MAX_DOUBLINGS)
        seconds = min(MAX_DELAY_SECONDS, math.ceil(wait + random.uniform(0, _JITTER_SECONDS)))  # noqa: S311 (jitter)
        try:
            if not await take_back(self.store, self.run, self.clock() + seconds):
                return False
        except StorageUnavailable:
            return False
        self.put_back_for = seconds
        return True
