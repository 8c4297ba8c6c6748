"""GET /v1/tools: the gateway's own tools."""

from starlette.responses import Response

from spass.core.messages import Json
from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/tools")
async def list_tools(exchange: CurrentExchange) -> Response:
    """Every tool, as a model sees it."""
    toolbox = exchange.services.toolbox
    found: list[Json] = [
        {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
        for tool in toolbox.specs(toolbox.names)
    ]
    return json_response({"tools": found})


handler = lambda_handler(router)
