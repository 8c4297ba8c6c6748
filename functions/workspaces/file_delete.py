"""DELETE /a1/workspaces/{workspace_id}/file: delete a file."""

from starlette.requests import Request

from spass.web.exchange import CurrentExchange
from spass.web.file_responses import IF_MATCH, IF_NONE_MATCH
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.workspaces import FilePath, WorkspaceParameter, write_file
from spass.workspaces.responses import WrittenFile

router = api_router()


@router.delete("/a1/workspaces/{workspace_id}/file", openapi_extra={"parameters": [IF_MATCH, IF_NONE_MATCH]})
async def delete_file(
    workspace_id: WorkspaceParameter, path: FilePath, request: Request, exchange: CurrentExchange
) -> WrittenFile:
    """Delete a file. Earlier versions keep it."""
    committed = await write_file(exchange, request.headers, workspace_id, path, None)
    return WrittenFile(version=committed.current, path=path, sha256=None)


handler = lambda_handler(router)
