"""GET /a1/agents/{name}/sessions: the caller's own sessions with an agent."""

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import AgentParameter, Pagination, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions")
async def list_sessions(name: AgentParameter, page: Pagination, exchange: CurrentExchange) -> Response:
    """The user's sessions with this agent, newest first."""
    exchange.services.agents.get(name)
    found = await exchange.services.sessions.page(exchange.scope, name, page.cursor, page.limit)
    return json_response({"sessions": [session.wire() for session in found.sessions], "next_cursor": found.next_cursor})


handler = lambda_handler(router)
