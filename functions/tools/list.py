"""GET /v1/tools: the gateway's own tools."""

from spass.tools.answers import FunctionTool, ToolList
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/tools")
async def list_tools(exchange: CurrentExchange) -> ToolList:
    """List all tools, with the descriptions that a model reads."""
    toolbox = exchange.services.toolbox
    return ToolList(tools=[FunctionTool.of(tool) for tool in toolbox.specs(toolbox.names)])


handler = lambda_handler(router)
