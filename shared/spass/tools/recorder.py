"""What one tool call leaves behind: its audit record, whichever way it ended."""

import json
import logging
import time
from typing import Final

import anyio

from spass.calls.scope import Scope
from spass.core.errors import StorageUnavailable
from spass.core.ids import RequestId, new_id
from spass.core.time import now
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind

_log: Final = logging.getLogger(__name__)


class ToolRecorder:
    """Made when a call begins; ``finish`` it exactly once. ``tool`` is None for a name that is no tool: it is a model's own
    text."""

    def __init__(self, scope: Scope, tool: str | None) -> None:
        self._request_id = RequestId(new_id("req"))
        self._scope = scope
        self._tool = tool
        self._at = now()
        self._started = time.monotonic()

    @property
    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    async def finish(self, status: str) -> None:
        """Keep the record. A cancelled caller waits for it, and a store that fails takes no result away: the log keeps it
        then."""
        scope, caller = self._scope, self._scope.caller
        record = AuditRecord(
            request_id=self._request_id,
            outer_request_id=caller.request_id,
            parent_request_id=caller.request_id,
            origin_request_id=caller.parent_request_id,
            at=self._at,
            kind=CallKind.TOOL,
            status=status,
            latency_ms=self.elapsed_ms,
            token_id=caller.identity.token_id,
            user=caller.user,
            agent=scope.agent,
            session=scope.session,
            route=caller.route,
            tool=self._tool,
        )
        with anyio.CancelScope(shield=True):
            try:
                await audit.write(scope.store, record)
            except StorageUnavailable:
                _log.error("audit record not stored: %s", json.dumps(audit.attributes(record)))
