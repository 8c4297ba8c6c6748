"""What one call of a model or a tool leaves behind, whichever way it ended: cost on the tally, room in the limits, its record and
its count."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from spass.aws.tasks import run_shielded
from spass.calls.admission import CallReservation
from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.ids import RequestId, new_id
from spass.core.time import now
from spass.llm.router import RoutingRecord
from spass.llm.types import CallContext
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind

_NO_RESERVATION: Final = CallReservation()
_NO_COST: Final = Cost()


class Recorder:
    """Made when a call begins; ``finish`` it exactly once. ``duration_ms`` is the time until then. ``tool`` is None for a name
    that is no tool: it is a model's own text."""

    def __init__(
        self,
        scope: Scope,
        kind: CallKind,
        *,
        model: str | None = None,
        tool: str | None = None,
        admitted: CallReservation = _NO_RESERVATION,
    ) -> None:
        caller = scope.caller
        self._scope = scope
        self._admitted = admitted
        self._record = AuditRecord(
            request_id=RequestId(new_id("req")),
            outer_request_id=caller.request_id,
            parent_request_id=scope.parent or caller.request_id,
            origin_request_id=caller.parent_request_id,
            at=now(),
            kind=kind,
            status=audit.FAILED,
            latency_ms=0,
            token_id=caller.identity.token_id,
            user=caller.user,
            agent=scope.agent,
            session=scope.session,
            route=caller.route,
            tool=tool,
            model=model,
        )
        self._started = time.monotonic()
        self.duration_ms = 0

    @property
    def request_id(self) -> RequestId:
        return self._record.request_id

    @property
    def context(self) -> CallContext:
        """What goes along with the call."""
        headers: Mapping[str, str] = {
            "SPASS-Caller-Depth": str(self._scope.depth + 1),
            "SPASS-Parent-Request-Id": self.request_id,
        }
        return CallContext(self._scope.deadline, headers, self._scope.caller.request_id)

    @property
    def elapsed_ms(self) -> int:
        """The time since the call began."""
        return round((time.monotonic() - self._started) * 1000)

    async def finish(
        self,
        status: str,
        *,
        route: RoutingRecord | None = None,
        cost: Cost = _NO_COST,
        finish_reason: str | None = None,
    ) -> None:
        """Settle the call; not even a cancelled caller leaves before it is. ``route`` is where a model's call went, and what it
        took there."""
        self._scope.tally.add(cost)
        route = route or RoutingRecord()
        self.duration_ms = self.elapsed_ms
        record = replace(
            self._record,
            status=status,
            latency_ms=self.duration_ms,
            backend=route.backend,
            attempts=route.attempts,
            usage=route.usage,
            usage_estimated=route.estimated,
            cost=cost,
            finish_reason=finish_reason,
        )
        await run_shielded(self._settled(record))

    async def _settled(self, record: AuditRecord) -> None:
        kept = audit.record_call(self._scope.store, record)
        if self._admitted.limited:
            await asyncio.gather(kept, self._admitted.settle(record.usage, record.cost))
        else:
            await kept
