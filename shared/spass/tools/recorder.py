"""What one tool call leaves behind: its audit record, whichever way it ended."""

import time

from spass.calls.scope import Scope
from spass.core.ids import RequestId, new_id
from spass.core.time import now
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind


class ToolRecorder:
    """Made when a call begins; ``finish`` it exactly once. ``duration_ms`` is the time until then. ``tool`` is None for a name
    that is no tool: it is a model's own text."""

    def __init__(self, scope: Scope, tool: str | None) -> None:
        self._request_id = RequestId(new_id("req"))
        self._scope = scope
        self._tool = tool
        self._at = now()
        self._started = time.monotonic()
        self.duration_ms = 0

    async def finish(self, status: str) -> None:
        """Keep the record; not even a cancelled caller leaves before it is."""
        self.duration_ms = round((time.monotonic() - self._started) * 1000)
        scope, caller = self._scope, self._scope.caller
        record = AuditRecord(
            request_id=self._request_id,
            outer_request_id=caller.request_id,
            parent_request_id=caller.request_id,
            origin_request_id=caller.parent_request_id,
            at=self._at,
            kind=CallKind.TOOL,
            status=status,
            latency_ms=self.duration_ms,
            token_id=caller.identity.token_id,
            user=caller.user,
            agent=scope.agent,
            session=scope.session,
            route=caller.route,
            tool=self._tool,
        )
        await audit.keep(scope.store, record)
