"""GET /a1/agents: all agents."""

import asyncio
from functools import partial

from spass.agents.responses import AgentPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/agents")
async def list_agents(page: Pagination, exchange: CurrentExchange) -> AgentPage:
    """List all agents, ordered by name, also those that this token cannot use."""
    services = exchange.services
    unusable = partial(services.availability.unusable, exchange.scope.caller.identity, services.config)
    return await asyncio.to_thread(services.agents.list, page.cursor, page.limit, unusable)


handler = lambda_handler(router)
