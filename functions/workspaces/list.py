"""GET /a1/workspaces: list the workspaces of the tenant."""

from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router
from spass.workspaces.catalog import read_workspaces
from spass.workspaces.responses import WorkspacePage

router = api_router()


@router.get("/a1/workspaces")
async def list_workspaces(page: Pagination, exchange: CurrentExchange) -> WorkspacePage:
    """List the workspaces of the tenant, ordered by id."""
    return await read_workspaces(exchange.scope.store, page.cursor, page.limit)


handler = lambda_handler(router)
