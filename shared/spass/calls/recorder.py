"""Account for one call of a model or a tool when it ends: price it, add it to the tally, settle its limits, record its usage.

The recorder also publishes the events of the call on the bus of its scope. Nothing else publishes events of calls.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

from spass.calls.scope import EventFields, Scope
from spass.core.bus import INFERENCE_END, INFERENCE_START, TOOL_CALL_END, TOOL_CALL_START
from spass.core.cost import NO_COST, Cost, CostSource
from spass.core.errors import SpassError
from spass.core.ids import RequestId, new_id
from spass.core.messages import NO_TOKENS, FinishReason, TokenUsage
from spass.core.time import now
from spass.limits.shard import Reservation
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind
from spass.models.attempt import RoutingRecord
from spass.models.types import CallContext, ReplyBuilder
from spass.redaction.redactor import Redactor
from spass.store.shielded import run_shielded
from spass.tenancy.config import ModelConfig

if TYPE_CHECKING:
    from spass.core.bus_events import InferenceEnd, InferenceStart, ToolCallEnd, ToolCallStart

_TOKENS_PER_PRICE: Final = 1_000_000
_USD_PRECISION: Final = Decimal("1E-12")  # prices are rounded to it, so that sums of any length stay exact
_MAX_USD: Final = Decimal(1_000_000)  # a higher price from a provider is ignored


class Recorder:
    """Account for one call. Create it when the call begins, and call ``finish`` exactly once, also if the call fails: the first
    publishes the call's START event, and the second its END event.

    ``tool`` is None if the model called a tool that does not exist: a name that the model made up must not be recorded.
    """

    def __init__(
        self,
        scope: Scope,
        kind: CallKind,
        *,
        model: str | None = None,
        tool: str | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        caller = scope.caller
        self._scope = scope
        self._reservation = reservation
        self._record = AuditRecord(
            request_id=RequestId(new_id("req")),
            outer_request_id=caller.request_id,
            parent_request_id=scope.parent_request_id,
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
        if kind is CallKind.TOOL:
            scope.tally.note_act()
        self._publish_start()

    @property
    def request_id(self) -> RequestId:
        return self._record.request_id

    @property
    def context(self) -> CallContext:
        headers: Mapping[str, str] = {
            "SPASS-Caller-Depth": str(self._scope.depth + 1),
            "SPASS-Parent-Request-Id": self.request_id,
        }
        return CallContext(self._scope.deadline, headers, self._scope.caller.request_id, sleep=self._scope.first_sleep)

    @property
    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    async def finish(
        self,
        status: str,
        *,
        routing: RoutingRecord | None = None,
        cost: Cost = NO_COST,
        finish_reason: str | None = None,
    ) -> None:
        """Settle and record the call, then publish its end. A cancelled caller waits until this is done. ``routing`` is None for
        a tool."""
        routing = routing or RoutingRecord()
        self._scope.tally.add(cost, routing.usage)
        if cost.sub_calls and self._record.kind is CallKind.CHAT:
            self._scope.tally.note_act()
        self.duration_ms = self.elapsed_ms
        record = replace(
            self._record,
            status=status,
            latency_ms=self.duration_ms,
            backend=routing.backend,
            attempts=routing.attempts,
            usage=routing.usage,
            usage_estimated=routing.estimated,
            cost=cost,
            finish_reason=finish_reason,
        )
        try:
            await run_shielded(self._settle_and_record(record))
        finally:
            self._publish_end(record)

    async def _settle_and_record(self, record: AuditRecord) -> None:
        audited = audit.record_call(self._scope.store, record)
        if self._reservation is not None:
            settled = self._reservation.settle(tokens=record.usage.total_tokens, usd=record.cost.usd)
            await asyncio.gather(audited, settled)
        else:
            await audited

    def _event_fields(self) -> EventFields:
        fields = self._scope.event_fields()
        fields["session_id"] = self._record.session  # a turn may go on in a successor before the call has ended
        return fields

    # Only a process with subscribers builds events, so only it imports their classes.

    def _publish_start(self) -> None:
        def tool_call() -> "ToolCallStart":
            from spass.core.bus_events import ToolCallStart

            return ToolCallStart(**self._event_fields(), call_id=self.request_id, tool=self._record.tool)

        def inference() -> "InferenceStart":
            from spass.core.bus_events import InferenceStart

            return InferenceStart(**self._event_fields(), call_id=self.request_id, model=self._record.model or "")

        if self._record.kind is CallKind.TOOL:
            self._scope.bus.publish(TOOL_CALL_START, tool_call)
        else:
            self._scope.bus.publish(INFERENCE_START, inference)

    def _publish_end(self, record: AuditRecord) -> None:
        def tool_call() -> "ToolCallEnd":
            from spass.core.bus_events import ToolCallEnd

            return ToolCallEnd(
                **self._event_fields(),
                call_id=record.request_id,
                tool=record.tool,
                ok=record.status == audit.OK,
                status=record.status,
                duration_ms=record.latency_ms,
            )

        def inference() -> "InferenceEnd":
            from spass.core.bus_events import InferenceEnd

            return InferenceEnd(
                **self._event_fields(),
                call_id=record.request_id,
                model=record.model or "",
                backend=record.backend,
                attempts=record.attempts,
                prompt_tokens=record.usage.prompt_tokens,
                completion_tokens=record.usage.completion_tokens,
                cost_usd=record.cost.usd,
                status=record.status,
                duration_ms=record.latency_ms,
            )

        if record.kind is CallKind.TOOL:
            self._scope.bus.publish(TOOL_CALL_END, tool_call)
        else:
            self._scope.bus.publish(INFERENCE_END, inference)


class OpenCall(Protocol):
    """A call that has begun. ``context`` has the deadline and the headers of its requests to backends. ``finish`` counts it."""

    @property
    def context(self) -> CallContext: ...

    async def finish(
        self, status: str, *, routing: RoutingRecord, cost: Cost, finish_reason: FinishReason | None = None
    ) -> None: ...


@dataclass(slots=True)
class RecordedCall:
    """One call of a model. The router fills ``routing``, the caller ``builder``. ``cost`` is set when the call has ended."""

    context: CallContext
    routing: RoutingRecord = field(default_factory=RoutingRecord)
    builder: ReplyBuilder = field(default_factory=ReplyBuilder)
    cost: Cost = NO_COST


@asynccontextmanager
async def record_call(
    opened: OpenCall, kind: CallKind, model: ModelConfig | None, redactor: Redactor, usd_to_eur: Decimal
) -> AsyncIterator[RecordedCall]:
    """Price and finish the call ``opened`` when the body ends, and redact secrets, hosts and paths in the error of the body. A
    call of a model that is not in the catalogue has no price."""
    call = RecordedCall(opened.context)
    status = audit.FAILED
    try:
        yield call
        status = audit.OK
    except SpassError as error:
        status = error.code
        raise redactor.redact_error(error) from None
    except (GeneratorExit, asyncio.CancelledError):
        status = audit.CANCELLED
        raise
    finally:
        reply = call.builder.reply
        finish_reason = reply.finish_reason if status == audit.OK and kind is CallKind.CHAT else None
        try:
            if model is not None:
                call.cost = _price_call(model, call.routing, status, reported_usd=reply.cost_usd, usd_to_eur=usd_to_eur)
        finally:
            await opened.finish(status, routing=call.routing, cost=call.cost, finish_reason=finish_reason)


def _price_call(
    model: ModelConfig, routing: RoutingRecord, status: str, *, reported_usd: Decimal | None, usd_to_eur: Decimal
) -> Cost:
    """Return the cost of one call, including its failed attempts. Ignore a reported price of 0 if the provider did not count
    tokens either."""
    if status != audit.OK and routing.usage == NO_TOKENS:
        return NO_COST
    if routing.estimated and not reported_usd:
        reported_usd = None
    cost = price(model, routing.answered_usage, reported_usd=reported_usd, usd_to_eur=usd_to_eur)
    if routing.failed_attempt_usage == NO_TOKENS:
        return cost
    return replace(cost + price(model, routing.failed_attempt_usage, reported_usd=None, usd_to_eur=usd_to_eur), sub_calls=1)


def price(model: ModelConfig, usage: TokenUsage, *, reported_usd: Decimal | None, usd_to_eur: Decimal) -> Cost:
    """Return the cost of one call: the price that the provider reported, or else the price in ``gateway.yaml``. An unknown price
    counts as 0."""
    per_in, per_out = model.usd_per_mtok_in, model.usd_per_mtok_out
    if reported_usd is not None and reported_usd <= _MAX_USD:
        usd, source = reported_usd, CostSource.UPSTREAM
    elif per_in is None or (per_out is None and usage.completion_tokens):
        return Cost(sub_calls=1)
    else:
        usd = (per_in * usage.prompt_tokens + (per_out or 0) * usage.completion_tokens) / _TOKENS_PER_PRICE
        source = CostSource.CATALOG
    return _rounded(usd, usd_to_eur, source)


def reported_price(usd: Decimal, usd_to_eur: Decimal) -> Cost:
    """Return the cost of one call whose price was reported as ``usd``."""
    return _rounded(usd, usd_to_eur, CostSource.UPSTREAM)


def _rounded(usd: Decimal, usd_to_eur: Decimal, source: CostSource) -> Cost:
    usd = usd.quantize(_USD_PRECISION)
    return Cost(usd.normalize(), (usd * usd_to_eur).normalize(), source, 1)
