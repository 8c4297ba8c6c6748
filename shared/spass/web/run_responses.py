"""Answer with the run of an agent: its outcome as JSON with headers, or a stream of its events."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import Receive

from spass.agents.render.frames import EventFormat
from spass.agents.responses import Reply
from spass.agents.spec import AgentSpec
from spass.core.ids import AgentName
from spass.core.run_result import RunResult
from spass.core.tasks import EventTask
from spass.runs.run import ChatSession, RunRequest
from spass.tenancy.response_model import ResponseModel
from spass.web.bodies import json_response
from spass.web.exchange import Exchange, render_cost_headers
from spass.web.idempotency import REPLAYED_HEADER
from spass.web.sessions import refuse_sessions
from spass.web.sse import run_for_client

STREAM_RESPONSE: Final = {"content": {"text/event-stream": {}}, "description": "With `stream`, the events of the run."}
"""The stream as OpenAPI describes it."""


async def answer_run(
    exchange: Exchange,
    agent: AgentSpec,
    request: RunRequest,
    client: Receive,
    render: Callable[[RunResult], ResponseModel] = Reply.of,
    *,
    stream: bool = False,
) -> Response:
    """Run ``agent`` and return its outcome, which ``render`` makes the body, or the stream of its events. If an earlier attempt
    of the request recorded an outcome, return that.

    ``client`` is the ASGI receive function. A turn of a session, and a run with an Idempotency-Key, continue when the client
    disconnects. Another stream then ends, and so does another run whose first model call waits for capacity.

    Raises:
        SpassError: the run was refused, or failed before the answer began.
        ClientDisconnect: the client disconnected, and the run was ended.
    """
    if stream:
        return await stream_run(exchange, agent, request, client)
    await exchange.take_place("turns")
    runs = exchange.services.runs
    if request.session is None:
        answer = await run_for_client(exchange, client, lambda scope: runs.answer(scope, agent, request))
    else:
        scope = exchange.scope.as_owner if request.operator is not None else exchange.scope
        answer = await runs.answer(scope, agent, request)
    headers = {**render_cost_headers(answer.outcome.cost), **_compaction_headers(answer.outcome)}
    replayed = {REPLAYED_HEADER: "true"} if answer.replayed else {}
    return json_response(render(answer.outcome), headers={**headers, **replayed})


async def run_chat(exchange: Exchange, name: AgentName, model: str | None, request: RunRequest, client: Receive) -> Response:
    """Run one turn of a chat with the agent ``name`` as a stream, as ``stream_run`` does. ``model`` replaces the agent's. Raise
    AgentNotFound, ModelNotFound or ModelNotAllowed if the agent or the model cannot be used, and SpassError if the turn is
    refused."""
    services, agent = exchange.services, exchange.services.agents.get(name)
    if model is not None:
        agent = replace(agent, model=services.calls.chat_model(exchange.scope, model).name)
    services.engine.check(exchange.scope, agent)
    if (operator := agent.operator_of(exchange.scope.caller.owner)) is not None:
        if isinstance(request.session, ChatSession) and request.session.wanted is not None:
            refuse_sessions(agent)
        request = replace(request, session=operator)
    return await stream_run(exchange, agent, request, client)


async def stream_run(exchange: Exchange, agent: AgentSpec, request: RunRequest, client: Receive) -> Response:
    """Start a run and return its stream, or follow or replay that of an earlier request.

    Raises:
        RateLimited: the tenant has too many turns in progress.
        SpassError: the run is refused. It leaves neither a new session nor a stream.
        ClientDisconnect: the client disconnected before the first event of a run that ends with it.
    """
    from spass.web.sse import stream_response, wait_for_first, yield_frames
    from spass.web.streams import EVENT_STYLE, RESUMABLE_STYLE, answer_followed, answer_live, report_failure

    scope = exchange.scope.streaming
    scope = scope.as_owner if request.operator is not None else scope
    await exchange.take_place("turns")
    run = await exchange.services.runs.stream(scope, agent, request, partial(report_failure, exchange))
    replayed = {REPLAYED_HEADER: "true"}
    if isinstance(run, RunResult):
        assert isinstance(request.form, EventFormat)  # noqa: S101 (only such runs have an Idempotency-Key)
        frames = yield_frames(request.form.replay(exchange.request_id, run))
        return await stream_response(frames, exchange.request_id, headers=replayed, style=EVENT_STYLE)
    if isinstance(run, EventTask):
        return await answer_followed(exchange, run, replayed if request.idempotency is not None else None)
    if request.session is not None:
        return answer_live(exchange, run, RESUMABLE_STYLE)
    ends_with_client = request.idempotency is None
    if ends_with_client and run.log is not None:
        await wait_for_first(run.log, run.cancel, client)
    await run.begin()
    return answer_live(exchange, run, EVENT_STYLE, ends_with_client=ends_with_client)


def _compaction_headers(outcome: RunResult) -> Mapping[str, str]:
    if (compaction := outcome.compaction) is not None:
        return {"SPASS-Compacted-From": compaction.source, "SPASS-Session-Id": compaction.successor}
    return {"SPASS-Compaction-Error": outcome.compaction_error} if outcome.compaction_error is not None else {}
