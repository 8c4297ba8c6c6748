"""GET /a1/workspaces/{workspace_id}/diff: compare two versions."""

from typing import Annotated

from fastapi import Query
from starlette.requests import Request

from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router, reject_repeated
from spass.web.workspaces import FolderPath, WholeNumber, WorkspaceParameter
from spass.workspaces.comparison import compare_versions
from spass.workspaces.responses import MAX_VERSION, Comparison

router = api_router()


@router.get("/a1/workspaces/{workspace_id}/diff")
async def compare(
    workspace_id: WorkspaceParameter,
    path: FolderPath,
    request: Request,
    exchange: CurrentExchange,
    before: Annotated[
        int | None,
        Query(alias="from", ge=0, le=MAX_VERSION, description="The default is the version before `to`."),
        WholeNumber,
    ] = None,
    after: Annotated[
        int | None, Query(alias="to", ge=1, le=MAX_VERSION, description="The default is the newest version."), WholeNumber
    ] = None,
) -> Comparison:
    """Return the files that differ between two versions, each with its diff."""
    reject_repeated(request, ("from", "to"))
    workspace = exchange.services.workspaces.open(exchange.scope.store, workspace_id)
    return await compare_versions(workspace, before, after, path)


handler = lambda_handler(router)
