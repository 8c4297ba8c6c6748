"""GET /a1/workspaces/{workspace_id}/file: return the content of a file."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.file_responses import IF_NONE_MATCH, NOT_MODIFIED, FileContent, answer_file
from spass.web.http_function import stream_app
from spass.web.routing import api_router
from spass.web.workspaces import FilePath, VersionParameter, WorkspaceParameter
from spass.workspaces.tree import find_file

router = api_router()


@router.get(
    "/a1/workspaces/{workspace_id}/file",
    response_class=FileContent,
    responses=NOT_MODIFIED,
    openapi_extra={"parameters": [IF_NONE_MATCH]},
)
async def get_file(
    workspace_id: WorkspaceParameter, path: FilePath, version: VersionParameter, request: Request, exchange: CurrentExchange
) -> Response:
    """Return the bytes of a file. Its `ETag` is the SHA-256 in quotes. If `If-None-Match` names it, the answer is 304."""
    workspace = exchange.services.workspaces.open(exchange.scope.store, workspace_id)
    at = await workspace.tree(version)
    file = find_file(at, path)
    return await answer_file(request, file.sha256, file.size, lambda: workspace.read(at, path))


app = stream_app(router)
