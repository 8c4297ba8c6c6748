"""GET /a1/workspaces/{workspace_id}/archive: return a version as a zip."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.file_responses import ArchiveContent, stream_archive
from spass.web.http_function import stream_app
from spass.web.routing import api_router
from spass.web.workspaces import VersionParameter, WorkspaceParameter

router = api_router()


@router.get("/a1/workspaces/{workspace_id}/archive", response_class=ArchiveContent)
async def get_archive(
    workspace_id: WorkspaceParameter, version: VersionParameter, request: Request, exchange: CurrentExchange
) -> Response:
    """Return all files of a version as a zip."""
    workspace = exchange.services.workspaces.open(exchange.scope.store, workspace_id)
    return await stream_archive(request, workspace.archive(await workspace.tree(version)))


app = stream_app(router)
