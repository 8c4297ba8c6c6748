"""The parameters of the routes of workspaces, and the writes of one file."""

import re
from dataclasses import replace
from typing import Annotated, Final
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query
from starlette.datastructures import Headers
from starlette.requests import Request

from spass.core.errors import InvalidPath, WorkspaceConflict
from spass.core.ids import RAG_ID, WorkspaceId
from spass.core.time import Deadline
from spass.store.swap import Participant
from spass.web.exchange import Exchange
from spass.web.file_responses import Preconditions
from spass.web.routing import exact_form, reject_repeated
from spass.workspaces.change import Author, Change, Committed
from spass.workspaces.head import workspace_not_found
from spass.workspaces.paths import WorkspacePath, parse_folder, parse_path, show
from spass.workspaces.responses import MAX_VERSION
from spass.workspaces.tree import find_file

_WRITE_SECONDS: Final = 25.0  # API Gateway waits 29 seconds for the answer of a short route

WorkspaceParameter = Annotated[WorkspaceId, Path(pattern=RAG_ID, description="A workspace's id.")]


WholeNumber = exact_form(re.compile(r"0|[1-9][0-9]{0,12}"), "whole_number", "must be a whole number")


async def _read_file_path(
    request: Request, path: Annotated[str, Query(description="The path of a file, from the root of the workspace.")]
) -> WorkspacePath:
    _check_query(request, "path")
    return parse_path(path)


async def _read_folder_path(
    request: Request, path: Annotated[str, Query(description="The path of a folder. The default is the root.")] = ""
) -> str:
    _check_query(request, "path")
    return parse_folder(path)


async def _read_version(
    request: Request,
    version: Annotated[
        int | None, Query(ge=1, le=MAX_VERSION, description="The default is the newest version."), WholeNumber
    ] = None,
) -> int | None:
    reject_repeated(request, ("version",))
    return version


def _check_query(request: Request, name: str) -> None:
    """Reject a query that repeats the path ``name``, or is not UTF-8: decoding would replace its bytes and change the path."""
    reject_repeated(request, (name,))
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        raise InvalidPath("The query is not UTF-8. Write each byte of the path's UTF-8 as %XX.", param=name) from None


FilePath = Annotated[WorkspacePath, Depends(_read_file_path)]
FolderPath = Annotated[str, Depends(_read_folder_path)]
VersionParameter = Annotated[int | None, Depends(_read_version)]


def write_deadline() -> Deadline:
    """Return the moment by which the write of a short route must end."""
    return Deadline.after(_WRITE_SECONDS)


async def commit(
    exchange: Exchange,
    workspace_id: WorkspaceId,
    change: Change,
    participant: Participant[Committed] | None = None,
    *,
    message: str | None = None,
    deadline: Deadline | None = None,
) -> Committed:
    """Make a version that names the caller's user, and says ``message``. A write makes one even if it changes no file: clients
    count their writes. ``deadline`` is ``write_deadline()`` by default. Raise the errors of ``Workspace.commit``."""
    scope = exchange.scope
    author, change = Author(user=scope.caller.user, message=message), replace(change, always=True)
    until = deadline or write_deadline()
    return await exchange.services.workspaces.open(scope.store, workspace_id).commit(change, author, until, participant)


async def write_file(
    exchange: Exchange, headers: Headers, workspace_id: WorkspaceId, path: WorkspacePath, body: bytes | None
) -> Committed:
    """Write ``body`` to the file at ``path``, or delete the file if it is None, under the preconditions in ``headers``.

    Raises:
        WorkspaceConflict: a precondition does not hold.
        WorkspaceNotFound, WorkspaceFileNotFound: there is no file to delete.
        SpassError: as ``Workspace.commit``.
    """
    preconditions = Preconditions.of(headers)
    if body is not None and not preconditions:
        return await commit(exchange, workspace_id, Change.of({path: body}))
    until = write_deadline()
    while True:
        at = await exchange.services.workspaces.open(exchange.scope.store, workspace_id).newest()
        if body is None:
            if not at.generation:
                raise workspace_not_found(workspace_id)
            find_file(at, path)
        sha256 = at.tree.sha256(path)
        if not preconditions.hold(sha256):
            raise _precondition_failed(path, sha256)
        try:
            return await commit(exchange, workspace_id, Change.of({path: body}, {path: sha256}), deadline=until)
        except WorkspaceConflict:  # another writer was faster: the preconditions may hold on its version too
            if not until.remaining():
                raise


def _precondition_failed(path: WorkspacePath, sha256: str | None) -> WorkspaceConflict:
    found = f"has the ETag {sha256!r}" if sha256 else "does not exist"
    return WorkspaceConflict(
        f"The file {show(path)} {found}, which the precondition excludes. Read it again and repeat.", details={"paths": [path]}
    )
