"""GET /v1/kinds: the agent kinds."""

from spass.agents.kind_list import KindList, list_all_kinds
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/kinds")
async def list_kinds() -> KindList:
    """List all agent kinds, with the parameters that an agent's file and `POST /v1/ask` accept."""
    return list_all_kinds()


handler = lambda_handler(router)
