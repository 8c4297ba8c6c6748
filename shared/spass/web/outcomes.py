"""Answer with the outcome of an agent's run, as JSON with headers."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.responses import Response

from spass.aws import idempotency
from spass.aws.idempotency import Claim, StoredAnswer
from spass.core.errors import InternalError
from spass.core.events import Event
from spass.core.outcome import TurnOutcome, decode_outcome, encode_outcome
from spass.tenancy.response_model import ResponseModel
from spass.web.exchange import Exchange, render_cost_headers
from spass.web.idempotency import REPLAYED_HEADER, holding
from spass.web.json import json_response


async def answer_run(
    exchange: Exchange,
    run: Callable[[], AsyncGenerator[Event | TurnOutcome, None]],
    render: Callable[[TurnOutcome], ResponseModel],
) -> Response:
    """Run an agent outside of a session and return its outcome, or return the outcome that an earlier attempt recorded.

    Raises:
        SpassError: the run was refused or failed.
        IdempotencyInProgress, IdempotencyKeyReused: the same as ``idempotency.acquire``.
    """
    request = exchange.idempotency
    claim = await idempotency.acquire(exchange.scope.store, request) if request is not None else None
    if isinstance(claim, StoredAnswer):
        return outcome_response(decode_outcome(claim.body, claim.headers), render, replayed=True)
    items = run() if claim is None else _record_outcome(claim, run())
    async with aclosing(items):
        async for item in items:
            if isinstance(item, TurnOutcome):
                return outcome_response(item, render)
    raise InternalError("The run ended without an outcome.")


async def _record_outcome(
    claim: Claim, items: AsyncGenerator[Event | TurnOutcome, None]
) -> AsyncGenerator[Event | TurnOutcome, None]:
    """Yield ``items``. Store the outcome before it is sent, because the end of an answer promises a replay."""
    async with holding(claim), aclosing(items):
        async for item in items:
            if isinstance(item, TurnOutcome):
                await claim.complete(StoredAnswer(encode_outcome(item), {}))
            yield item


def outcome_response(outcome: TurnOutcome, render: Callable[[TurnOutcome], ResponseModel], *, replayed: bool = False) -> Response:
    """Return the response with the body that ``render`` returns, and the headers of the outcome."""
    headers = {**render_cost_headers(outcome.cost), **_compaction_headers(outcome)}
    return json_response(render(outcome), headers={**headers, REPLAYED_HEADER: "true"} if replayed else headers)


def _compaction_headers(outcome: TurnOutcome) -> Mapping[str, str]:
    """Return the headers that report a turn's compaction or its failure."""
    if (compaction := outcome.compaction) is not None:
        return {"SPASS-Compacted-From": compaction.source, "SPASS-Session-Id": compaction.successor}
    return {"SPASS-Compaction-Error": outcome.compaction_error} if outcome.compaction_error is not None else {}
