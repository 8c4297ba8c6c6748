"""GET /a1/agents: every agent the operator has put in place."""

from dataclasses import asdict

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/agents")
async def list_agents(page: Pagination, exchange: CurrentExchange) -> Response:
    """All agents, in short, by name."""
    return json_response(asdict(exchange.services.agents.list(page.cursor, page.limit)))


handler = lambda_handler(router)
