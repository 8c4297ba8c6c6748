"""PUT /a1/workspaces/{workspace_id}/archive: write the files of a zip."""

from typing import Annotated, Literal

import anyio.to_thread
from fastapi import Query
from starlette.requests import Request

from spass.web.bodies import RawBody
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import ArchiveRoute, api_router, reject_repeated
from spass.web.workspaces import WorkspaceParameter, commit
from spass.workspaces.archive_in import read_archive
from spass.workspaces.change import Change
from spass.workspaces.responses import WrittenTree

router = api_router(ArchiveRoute)


@router.put("/a1/workspaces/{workspace_id}/archive")
async def put_archive(
    workspace_id: WorkspaceParameter,
    body: RawBody,
    request: Request,
    exchange: CurrentExchange,
    mode: Annotated[
        Literal["replace", "merge"], Query(description="`merge` keeps the files that the archive does not hold.")
    ] = "replace",
) -> WrittenTree:
    """Write all files of a zip, as one version or not at all. The workspace is created if it does not exist."""
    reject_repeated(request, ("mode",))
    files = await anyio.to_thread.run_sync(read_archive, body)
    change = Change.replace_all(files) if mode == "replace" else Change.of(files)
    return WrittenTree.of(await commit(exchange, workspace_id, change))


handler = lambda_handler(router)
