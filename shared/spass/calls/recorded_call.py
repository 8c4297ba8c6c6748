"""Account for one call of a model when it ends, whether it succeeds, fails or is cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Protocol

from spass.core.cost import NO_COST, Cost
from spass.core.errors import SpassError
from spass.core.messages import NO_TOKENS, FinishReason
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.metering.pricing import price
from spass.models.router import RoutingRecord
from spass.models.types import CallContext, ReplyBuilder
from spass.redaction.redactor import Redactor
from spass.tenancy.config import ModelConfig


class OpenCall(Protocol):
    """A call that has begun."""

    @property
    def context(self) -> CallContext:
        """Return the deadline and the headers of its requests to backends."""
        ...

    async def finish(self, status: str, *, routing: RoutingRecord, cost: Cost, finish_reason: FinishReason | None = None) -> None:
        """Count the call. ``status`` is ``ok``, ``cancelled`` or the code of an error."""
        ...


@dataclass(slots=True)
class RecordedCall:
    """One call of a model. The caller sets ``routing`` and fills ``builder``. ``cost`` is set when the call has ended."""

    context: CallContext
    routing: RoutingRecord = field(default_factory=RoutingRecord)
    builder: ReplyBuilder = field(default_factory=ReplyBuilder)
    cost: Cost = NO_COST


@asynccontextmanager
async def record_call(
    opened: OpenCall, kind: CallKind, model: ModelConfig | None, redactor: Redactor, usd_to_eur: Decimal
) -> AsyncIterator[RecordedCall]:
    """Price and finish the call ``opened`` when the body ends. A call of a model that is not in the catalogue has no price.

    Raises:
        SpassError: the error of the body, with secrets, hosts and paths redacted.
    """
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
    """Return the cost of one call, including its lost attempts.

    ``status`` is that of the audit. ``reported_usd`` is the price that the provider reported. Ignore a price of 0 if the provider
    did not count tokens either.
    """
    if status != audit.OK and routing.usage == NO_TOKENS:
        return NO_COST
    if routing.estimated and not reported_usd:
        reported_usd = None
    cost = price(model, routing.answered_usage, reported_usd=reported_usd, usd_to_eur=usd_to_eur)
    if routing.failed_attempt_usage == NO_TOKENS:
        return cost
    return replace(cost + price(model, routing.failed_attempt_usage, reported_usd=None, usd_to_eur=usd_to_eur), sub_calls=1)
