"""POST /a1/agents/{name}/sessions/{session_id}/messages: one turn of a session."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.answers import Reply
from spass.agents.spec import MessageBody
from spass.agents.streams import StreamedMessage
from spass.core.errors import SessionArchived
from spass.core.events import Event
from spass.sessions.session import Successor
from spass.sessions.turn_request import LoadHistory, ShortenHistory, TurnRequest, messages_path
from spass.web.app import location
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.json import json_response
from spass.web.operators import agent_of_sessions
from spass.web.outcomes import STREAM_RESPONSE, answer_turn
from spass.web.routing import AgentParameter, SessionParameter, api_router
from spass.web.streams import run_stream

router = api_router()


@router.post(
    "/a1/agents/{name}/sessions/{session_id}/messages",
    response_model=Reply,
    responses={
        200: STREAM_RESPONSE,
        308: {"model": Successor, "description": "The session was compacted; `Location` is its successor."},
    },
)
async def append(
    name: AgentParameter, session_id: SessionParameter, body: MessageBody, request: Request, exchange: CurrentExchange
) -> Response:
    """Send a message to a session. The message, the agent's tool calls and its answer are stored together or not at all."""
    services, agent = exchange.services, agent_of_sessions(exchange, name)
    scope = exchange.scope.for_agent(name, session_id)
    services.engine.check(scope, agent)

    def respond(load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
        return services.engine.run(scope, agent, body.message, load, shorten)

    try:
        if body.stream:
            return await run_stream(exchange, agent, StreamedMessage.of(body.message, session_id, exchange.idempotency))
        run, window = agent.run(exchange.request_id), services.config.model(agent.model).context_window
        turn = TurnRequest(session_id, scope.caller.require_user(), body.message, run, window, exchange.idempotency)
        return await answer_turn(services.sessions.turn(scope, turn, respond))
    except SessionArchived as archived:
        successor = await services.sessions.successor(scope, name, archived)
        target = location(request, messages_path(name, successor))
        return json_response(Successor(successor_session_id=successor), status=308, headers={"Location": target})


app = stream_app(router, warm_up=lambda services: (services.streams, services.agents, services.read_keys(all_models=True)))
