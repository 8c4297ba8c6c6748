"""GET /a1/agents/{name}/sessions: the caller's own sessions with an agent."""

from spass.agents.kinds.registry import KINDS
from spass.sessions.service import SessionPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, Pagination, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions")
async def list_sessions(name: AgentParameter, page: Pagination, exchange: CurrentExchange) -> SessionPage:
    """List the user's sessions with this agent, newest first. Those of a kind are of operators that ran without an agent's
    file."""
    if not KINDS.contains(name):
        exchange.services.agents.get(name)
    return await exchange.services.sessions.page(exchange.scope, name, page.cursor, page.limit)


handler = lambda_handler(router)
