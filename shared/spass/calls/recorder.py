"""What one model call leaves behind: its cost on the request's tally and its audit record, whichever way it ended."""

import time
from collections.abc import Mapping

from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.ids import RequestId, new_id
from spass.core.messages import TokenUsage
from spass.core.time import now
from spass.llm.types import CallContext
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind


class Recorder:
    """Made when a call begins; ``finish`` it exactly once."""

    def __init__(self, scope: Scope, kind: CallKind, model: str) -> None:
        self.request_id = RequestId(new_id("req"))
        self._scope = scope
        self._kind = kind
        self._model = model
        self._at = now()
        self._started = time.monotonic()

    @property
    def context(self) -> CallContext:
        """What goes along with the call."""
        headers: Mapping[str, str] = {
            "SPASS-Caller-Depth": str(self._scope.depth + 1),
            "SPASS-Parent-Request-Id": self.request_id,
        }
        return CallContext(self._scope.deadline, headers, self._scope.caller.request_id)

    async def finish(
        self,
        *,
        status: str,
        backend: str | None,
        attempts: int,
        usage: TokenUsage,
        estimated: bool,
        cost: Cost,
        finish_reason: str | None = None,
    ) -> None:
        """Settle the call; not even a cancelled caller leaves before it is."""
        scope, caller = self._scope, self._scope.caller
        scope.tally.add(cost)
        record = AuditRecord(
            request_id=self.request_id,
            outer_request_id=caller.request_id,
            parent_request_id=caller.request_id,
            origin_request_id=caller.parent_request_id,
            at=self._at,
            kind=self._kind,
            status=status,
            latency_ms=round((time.monotonic() - self._started) * 1000),
            token_id=caller.identity.token_id,
            user=caller.user,
            agent=scope.agent,
            session=scope.session,
            route=caller.route,
            model=self._model,
            backend=backend,
            attempts=attempts,
            usage=usage,
            usage_estimated=estimated,
            cost=cost,
            finish_reason=finish_reason,
        )
        await audit.keep(scope.store, record)
