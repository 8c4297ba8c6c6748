"""What one tool call leaves behind: its audit record, whichever way it ended."""

import time
from dataclasses import replace

from spass.aws.endings import to_its_end
from spass.calls.recorder import begun
from spass.calls.scope import Scope
from spass.core.ids import RequestId
from spass.metering import audit
from spass.metering.audit import CallKind


class ToolRecorder:
    """Made when a call begins; ``finish`` it exactly once. ``duration_ms`` is the time until then. ``tool`` is None for a name
    that is no tool: it is a model's own text."""

    def __init__(self, scope: Scope, tool: str | None) -> None:
        self._scope = scope
        self._record = replace(begun(scope, CallKind.TOOL), tool=tool)
        self._started = time.monotonic()
        self.duration_ms = 0

    @property
    def request_id(self) -> RequestId:
        return self._record.request_id

    @property
    def elapsed_ms(self) -> int:
        """The time since the call began."""
        return round((time.monotonic() - self._started) * 1000)

    async def finish(self, status: str) -> None:
        """Keep the record; not even a cancelled caller leaves before it is."""
        self.duration_ms = self.elapsed_ms
        await to_its_end(audit.keep(self._scope.store, replace(self._record, status=status, latency_ms=self.duration_ms)))
