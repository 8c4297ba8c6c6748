"""GET /v1/managed-agents: the caller's managed agents."""

from spass.managed.responses import ManagedAgentPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/v1/managed-agents")
async def list_managed_agents(page: Pagination, exchange: CurrentExchange) -> ManagedAgentPage:
    """List the caller's managed agents, newest first."""
    return await exchange.services.managed_agents.page(exchange.scope, page.cursor, page.limit)


handler = lambda_handler(router)
