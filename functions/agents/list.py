"""GET /a1/agents: every agent the operator has put in place."""

from starlette.responses import Response

from spass.web.exchange import Current
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import api_router

router = api_router()


@router.get("/a1/agents")
async def agents(exchange: Current) -> Response:
    """All agents, in short."""
    return json_response({"agents": exchange.services.agents.list()})


handler = lambda_handler(router)
