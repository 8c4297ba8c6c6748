"""GET /a1/workspaces/{workspace_id}: describe a workspace."""

from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.workspaces import WorkspaceParameter
from spass.workspaces.head import read_live_head
from spass.workspaces.responses import WorkspaceSummary

router = api_router()


@router.get("/a1/workspaces/{workspace_id}")
async def get_workspace(workspace_id: WorkspaceParameter, exchange: CurrentExchange) -> WorkspaceSummary:
    """Return a workspace's newest version and its size."""
    return WorkspaceSummary.of(workspace_id, await read_live_head(exchange.scope.store, workspace_id))


handler = lambda_handler(router)
