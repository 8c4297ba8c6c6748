"""GET /a1/workspaces/{workspace_id}/tree: list the files and directories of a version."""

from typing import Annotated

from fastapi import Query
from starlette.requests import Request

from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router, reject_repeated
from spass.web.workspaces import FolderPath, VersionParameter, WholeNumber, WorkspaceParameter
from spass.workspaces.catalog import Listing
from spass.workspaces.responses import TreePage

router = api_router()


@router.get("/a1/workspaces/{workspace_id}/tree")
async def list_tree(
    workspace_id: WorkspaceParameter,
    path: FolderPath,
    version: VersionParameter,
    page: Pagination,
    request: Request,
    exchange: CurrentExchange,
    depth: Annotated[
        int | None, Query(ge=1, le=1000, description="The levels below `path`. The default is all of them."), WholeNumber
    ] = None,
) -> TreePage:
    """List what is below `path`, ordered by path. All pages of a list show the version of its first one."""
    reject_repeated(request, ("depth",))
    store = exchange.scope.store
    listing = Listing(workspace_id, path, depth)
    after = listing.decode(store, page.cursor, version) if page.cursor else None
    at = await exchange.services.workspaces.open(store, workspace_id).tree(after.version if after else version)
    return listing.page(store, at, after.path if after else None, page.limit)


handler = lambda_handler(router)
