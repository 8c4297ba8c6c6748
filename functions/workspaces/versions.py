"""GET /a1/workspaces/{workspace_id}/versions: list the versions of a workspace."""

from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router
from spass.web.workspaces import WorkspaceParameter
from spass.workspaces.catalog import read_versions
from spass.workspaces.responses import VersionPage

router = api_router()


@router.get("/a1/workspaces/{workspace_id}/versions")
async def list_versions(workspace_id: WorkspaceParameter, page: Pagination, exchange: CurrentExchange) -> VersionPage:
    """List the versions of a workspace, newest first."""
    return await read_versions(exchange.scope.store, workspace_id, page.cursor, page.limit)


handler = lambda_handler(router)
