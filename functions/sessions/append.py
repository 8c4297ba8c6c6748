"""POST /a1/agents/{name}/sessions/{session_id}/messages: one turn of a session."""

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.responses import Reply
from spass.agents.spec import MessageBody
from spass.core.errors import SessionArchived
from spass.runs.run import RunRequest
from spass.sessions.hold import messages_path
from spass.sessions.session import Successor
from spass.web.app import location
from spass.web.bodies import json_response
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import AgentParameter, SessionParameter, api_router
from spass.web.run_responses import STREAM_RESPONSE, answer_run
from spass.web.sessions import agent_of_sessions

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
    services.engine.check(exchange.scope, agent)
    run = RunRequest(body.message, session_id, idempotency=exchange.idempotency)
    try:
        return await answer_run(exchange, agent, run, request.receive, stream=body.stream)
    except SessionArchived as archived:
        successor = await services.sessions.successor(exchange.scope, name, archived)
        target = location(request, messages_path(name, successor))
        return json_response(Successor(successor_session_id=successor), status=308, headers={"Location": target})


app = stream_app(router, warm_up=lambda services: (services.runs.sessions, services.agents, services.read_keys(all_models=True)))
