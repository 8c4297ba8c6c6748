"""POST /a1/agents/{name}/sessions/{session_id}/messages: one turn of a session."""

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.answers import Reply
from spass.agents.spec import MessageBody
from spass.agents.turn import start_turn
from spass.core.errors import SessionArchived
from spass.sessions.session import Successor
from spass.web.app import location
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import identify_redirect, replay_response
from spass.web.json import json_response
from spass.web.routing import AgentParameter, SessionParameter, api_router

router = api_router()


@router.post(
    "/a1/agents/{name}/sessions/{session_id}/messages",
    response_model=Reply,
    responses={308: {"model": Successor, "description": "The session was compacted; `Location` is its successor."}},
)
async def append(
    name: AgentParameter, session_id: SessionParameter, body: MessageBody, request: Request, exchange: CurrentExchange
) -> Response:
    """Send a message to a session. The message, the agent's tool calls and its answer are stored together or not at all."""
    agent = (services := exchange.services).agents.get(name)
    turn = start_turn(
        services.sessions,
        services.engine,
        exchange.scope,
        agent,
        session_id,
        body.message,
        context_window=services.config.model(agent.model).context_window,
        headers=exchange.cost_headers,
        idempotency=exchange.idempotency,
        successor_idempotency=lambda successor: identify_redirect(request, exchange, _messages_path(name, successor)),
    )
    try:
        outcome = await turn.answer()
    except SessionArchived as archived:
        successor = await services.sessions.successor(exchange.scope, name, archived)
        target = location(request, _messages_path(name, successor))
        return json_response(Successor(successor_session_id=successor), status=308, headers={"Location": target})
    if outcome.replayed:
        return replay_response(outcome.answer)
    return json_response(outcome.answer.body, headers=outcome.answer.headers)


def _messages_path(agent: str, session: str) -> str:
    return f"/a1/agents/{agent}/sessions/{session}/messages"


app = stream_app(
    router, warm_up=lambda services: (services.engine, services.agents, services.sessions, services.read_keys(all_models=True))
)
