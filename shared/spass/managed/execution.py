"""One execution of a run by one worker, and the end of a run that fails."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spass.aws.clients import TenantStore
from spass.core.errors import GATEWAY_STOPPED, SessionBusy, SpassError, StorageUnavailable
from spass.core.messages import Json
from spass.core.time import Clock
from spass.managed.records import MAX_ATTEMPTS, Run
from spass.managed.run_end import fail

_PASSING: Final = (StorageUnavailable, SessionBusy)
"""Errors after which a queued run is executed again: they say nothing about the run."""
_DELAYS: Final = (0.1, 0.4, 1.0)  # seconds before each retry


@dataclass(slots=True)
class Execution:
    """One execution of ``run``. A failure ends the run, unless the queue delivers it again (``may_retry``) and that may help.
    ``is_over``: a failure has ended the run."""

    store: TenantStore
    run: Run
    clock: Clock
    may_retry: bool
    is_over: bool = False

    async def fail(self, error: SpassError, rendered: Mapping[str, Json]) -> None:
        """End the run as failed. If the table does not answer, the next request, tick or sweep that reads the run ends
        it."""
        is_passing = isinstance(error, _PASSING) or error is GATEWAY_STOPPED
        if is_passing and self.may_retry and self.run.attempts < MAX_ATTEMPTS:
            return
        for delay in (*_DELAYS, None):
            try:
                ended = await fail(self.store, self.run, rendered, self.clock())
            except StorageUnavailable:
                if delay is not None:
                    await asyncio.sleep(delay)
            else:
                self.is_over = ended is None or ended.status.is_final
                return
