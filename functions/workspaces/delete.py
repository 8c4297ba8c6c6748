"""DELETE /a1/workspaces/{workspace_id}: delete a workspace with all its versions."""

from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.workspaces import WorkspaceParameter, write_deadline

router = api_router()


@router.delete("/a1/workspaces/{workspace_id}")
async def delete_workspace(workspace_id: WorkspaceParameter, exchange: CurrentExchange) -> Deletion:
    """Delete a workspace with all its versions. `deleted` is false if there was none. A later write continues its numbers."""
    workspace = exchange.services.workspaces.open(exchange.scope.store, workspace_id)
    return Deletion(deleted=await workspace.delete(write_deadline()))


handler = lambda_handler(router)
