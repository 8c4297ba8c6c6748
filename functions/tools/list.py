"""GET /v1/tools: the gateway's own tools."""

from spass.tools.registry import TOOLS, load_tool
from spass.tools.responses import FunctionTool, ToolList
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/tools")
async def list_tools() -> ToolList:
    """List all tools, with the descriptions that a model reads."""
    return ToolList(tools=[FunctionTool.of(load_tool(name).spec()) for name in TOOLS])


handler = lambda_handler(router)
