"""GET /a1/agents: all agents."""

from spass.agents.answers import AgentPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/agents")
async def list_agents(page: Pagination, exchange: CurrentExchange) -> AgentPage:
    """List all agents, ordered by name."""
    return exchange.services.agents.list(page.cursor, page.limit)


handler = lambda_handler(router)
