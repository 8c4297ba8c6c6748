"""POST /a1/agents/{name}/sessions/{session_id}/messages: one turn of a session."""

from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from spass.agents import reply
from spass.agents.spec import MessageBody
from spass.aws.idempotency import StoredAnswer
from spass.core.errors import SessionArchived
from spass.core.events import Event
from spass.core.messages import Message
from spass.sessions.turn import Recorded, Relief
from spass.web.app import location
from spass.web.exchange import Current
from spass.web.functions import stream_app
from spass.web.idempotency import redirected, replayed
from spass.web.json import json_response
from spass.web.routing import Agent, Session, api_router

router = api_router()


@router.post(
    "/a1/agents/{name}/sessions/{session_id}/messages",
    responses={308: {"description": "The session was compacted; `Location` is its successor."}},
)
async def append(name: Agent, session_id: Session, body: MessageBody, request: Request, exchange: Current) -> Response:
    """Say something in a session. The message, the agent's tool calls and its answer are recorded together, or not at all."""
    services, scope = exchange.services, exchange.scope.within(name, session_id)
    agent = services.agents.get(name)
    services.engine.check(scope, agent)

    def render(turn: Recorded) -> StoredAnswer:
        last = turn.turn.messages[-1]
        at = reply.Recorded(turn.session.id, last.id, last.seq, turn.compacted)
        answer = reply.render_reply(exchange.request_id, agent, turn.outcome, last.created_at, at)
        headers = reply.compaction_headers(turn.compacted, turn.compaction_error)
        return StoredAnswer(answer, {**exchange.cost_headers(), **headers})

    def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        return services.engine.run(scope.within(name, turn.session), agent, history, body.message, relief=relief)

    turn = services.sessions.turn(
        scope,
        name,
        session_id,
        body.message,
        model=agent.model,
        context_window=services.config.model(agent.model).context_window,
        respond=respond,
        render=render,
        idempotency=exchange.idempotent,
        redirected=lambda successor: redirected(request, exchange, _path(name, successor)),
    )
    try:
        done = await turn.answer()
    except SessionArchived as archived:
        successor = str(archived.details["successor_session_id"])
        target = location(request, _path(name, successor))
        return json_response({"successor_session_id": successor}, status=308, headers={"Location": target})
    return replayed(done.answer) if done.replayed else json_response(done.answer.body, headers=done.answer.headers)


def _path(agent: str, session: str) -> str:
    return f"/a1/agents/{agent}/sessions/{session}/messages"


app = stream_app(router, needs=lambda services: (services.engine, services.agents, services.sessions))
