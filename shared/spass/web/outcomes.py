"""Answer with the run of an agent: its outcome as JSON with headers, or a stream of its events."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import Receive

from spass.agents.answers import Reply
from spass.agents.render.events import EventWriter, render_failure
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import InternalError
from spass.core.events import Event, Failed
from spass.core.outcome import TurnOutcome, decode_outcome, encode_outcome
from spass.store import idempotency
from spass.store.idempotency import Claim, StoredAnswer
from spass.tenancy.response_model import ResponseModel
from spass.web.disconnect import run_for_client
from spass.web.exchange import Exchange, render_cost_headers
from spass.web.idempotency import REPLAYED_HEADER, holding
from spass.web.json import json_response
from spass.web.sse import Chunk, StreamFormat, stream_response, yield_chunks

if TYPE_CHECKING:
    from spass.sessions.turn import Turn  # not needed by a run without a session

EVENTS: Final = StreamFormat(lambda error: render_failure(error.error.to_dict(), error.request_id))
"""The format of the stream of a run."""

STREAM_RESPONSE: Final = {"content": {"text/event-stream": {}}, "description": "With `stream`, the events of the run."}
"""The stream as OpenAPI describes it."""


async def answer_run(
    exchange: Exchange,
    agent: AgentSpec,
    client: Receive,
    run: Callable[[Scope], AsyncGenerator[Event | TurnOutcome, None]],
    render: Callable[[TurnOutcome], ResponseModel],
    *,
    stream: bool,
    shows_kind: bool = False,
) -> Response:
    """Run ``agent`` outside of a session and return its outcome, which ``render`` makes the body, or the stream of its events.
    If an earlier attempt of the request recorded an outcome, return that.

    ``run`` gets the scope with the deadline of the answer. ``client`` is the ASGI receive function. Without an Idempotency-Key, a
    stream ends when the client disconnects, and a run without one if its first model call then waits for capacity. With a key it
    continues, so that the outcome is stored for the client's retry. ``shows_kind``: the end of the stream names the agent's kind.

    Raises:
        SpassError: the run was refused, or failed before the answer began.
        IdempotencyInProgress, IdempotencyKeyReused: the same as ``idempotency.acquire``.
        ClientDisconnect: the client disconnected before the first event or model call, and the request has no key.
    """
    request, writer = exchange.idempotency, EventWriter(exchange.request_id, agent.name, shows_kind=shows_kind)
    claim = await idempotency.acquire(exchange.scope.store, request) if request is not None else None
    if isinstance(claim, StoredAnswer):
        outcome = decode_outcome(claim.body)
        return await _replay(exchange, writer, outcome) if stream else _respond(outcome, render, replayed=True)

    def run_in(scope: Scope) -> AsyncGenerator[Event | TurnOutcome, None]:
        return _record_outcome(claim, run(scope)) if claim is not None else run(scope)

    if stream:
        chunks = _render(writer, run_in(exchange.scope.streaming))
        return await _stream(exchange, chunks, client=client if claim is None else None)
    return _respond(await run_for_client(exchange, client, lambda scope: _outcome_of(run_in(scope))), render)


async def _outcome_of(items: AsyncGenerator[Event | TurnOutcome, None]) -> TurnOutcome:
    """Return the outcome with which a run ends."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, TurnOutcome):
                return item
    raise InternalError("The run ended without an outcome.")


async def answer_turn(turn: "Turn", render: Callable[[TurnOutcome], ResponseModel] = Reply.of) -> Response:
    """Return the reply of a session's turn, which continues when the client disconnects. ``render`` makes the body.

    Raises:
        SpassError: the turn was refused or failed.
    """
    answer = await turn.answer()
    return _respond(answer.outcome, render, replayed=answer.replayed)


async def stream_turn(exchange: Exchange, agent: AgentSpec, turn: "Turn", *, shows_kind: bool = False) -> Response:
    """Return the events of a turn of ``agent`` in a session, which continues when the client disconnects. They have no ids. If an
    earlier attempt of the request recorded the turn, replay it. ``shows_kind``: the end of the stream names the agent's kind.

    Raises:
        SpassError: the turn was refused.
    """
    await turn.task.wait_for_event(0)
    if not turn.task.events:
        outcome = (await turn.answer()).outcome
        return await _replay(exchange, EventWriter(exchange.request_id, agent.name, shows_kind=shows_kind), outcome)
    writer = EventWriter(exchange.request_id, agent.name, turn.session, shows_kind=shows_kind)
    return await _stream(exchange, _render_turn(writer, turn))


async def replay_outcome(exchange: Exchange, outcome: TurnOutcome) -> Response:
    """Return the stream of a turn that an earlier request recorded."""
    return await _replay(exchange, EventWriter(exchange.request_id, outcome.run.agent), outcome)


async def _record_outcome(
    claim: Claim, items: AsyncGenerator[Event | TurnOutcome, None]
) -> AsyncGenerator[Event | TurnOutcome, None]:
    """Yield ``items``. Store the outcome before it is sent, because the end of an answer promises a replay."""
    async with holding(claim), aclosing(items):
        async for item in items:
            if isinstance(item, TurnOutcome):
                await claim.complete(StoredAnswer(encode_outcome(item), {}))
            yield item


async def _render(writer: EventWriter, items: AsyncGenerator[Event | TurnOutcome, None]) -> AsyncGenerator[Chunk, None]:
    async with aclosing(items):
        async for item in items:
            for chunk in writer.write(item):
                yield chunk


async def _render_turn(writer: EventWriter, turn: "Turn") -> AsyncGenerator[Chunk, None]:
    """Yield the events of ``turn``. After a compaction, name the successor.

    Raises:
        SpassError: the turn failed.
    """
    session = turn.session
    async with aclosing(turn.task.follow()) as events:
        async for event in events:
            if turn.session not in (None, session) and not isinstance(event, Failed):
                session = turn.session
                yield writer.move(session)
            for chunk in writer.write(event):
                yield chunk
    for chunk in writer.write((await turn.answer()).outcome):
        yield chunk


async def _replay(exchange: Exchange, writer: EventWriter, outcome: TurnOutcome) -> Response:
    return await _stream(exchange, yield_chunks(writer.replay(outcome)), headers={REPLAYED_HEADER: "true"})


async def _stream(
    exchange: Exchange,
    chunks: AsyncGenerator[Chunk, None],
    *,
    client: Receive | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    redact = exchange.services.redact
    return await stream_response(chunks, exchange.request_id, headers=headers, redact=redact, client=client, stream_format=EVENTS)


def _respond(outcome: TurnOutcome, render: Callable[[TurnOutcome], ResponseModel], *, replayed: bool = False) -> Response:
    """Return the response with the body that ``render`` returns, and the headers of the outcome."""
    headers = {**render_cost_headers(outcome.cost), **_compaction_headers(outcome)}
    return json_response(render(outcome), headers={**headers, REPLAYED_HEADER: "true"} if replayed else headers)


def _compaction_headers(outcome: TurnOutcome) -> Mapping[str, str]:
    """Return the headers that report a turn's compaction or its failure."""
    if (compaction := outcome.compaction) is not None:
        return {"SPASS-Compacted-From": compaction.source, "SPASS-Session-Id": compaction.successor}
    return {"SPASS-Compaction-Error": outcome.compaction_error} if outcome.compaction_error is not None else {}
