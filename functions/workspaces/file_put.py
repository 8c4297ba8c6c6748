"""PUT /a1/workspaces/{workspace_id}/file: write a file."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.bodies import RawBody, json_response
from spass.web.exchange import CurrentExchange
from spass.web.file_responses import IF_MATCH, IF_NONE_MATCH, etag
from spass.web.http_function import lambda_handler
from spass.web.routing import FileRoute, api_router
from spass.web.workspaces import FilePath, WorkspaceParameter, write_file
from spass.workspaces.change import Body
from spass.workspaces.responses import WrittenFile

router = api_router(FileRoute)


@router.put(
    "/a1/workspaces/{workspace_id}/file",
    response_model=WrittenFile,
    openapi_extra={"parameters": [IF_MATCH, IF_NONE_MATCH]},
)
async def put_file(
    workspace_id: WorkspaceParameter, path: FilePath, body: RawBody, request: Request, exchange: CurrentExchange
) -> Response:
    """Write a file. The workspace is created if it does not exist. Each write makes a version."""
    committed = await write_file(exchange, request.headers, workspace_id, path, body)
    sha256 = Body.of(body).sha256
    return json_response(WrittenFile(version=committed.current, path=path, sha256=sha256), headers={"ETag": etag(sha256)})


handler = lambda_handler(router)
