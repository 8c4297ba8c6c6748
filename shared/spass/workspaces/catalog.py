"""List the workspaces of a tenant, the versions of a workspace, and the files of a version, page by page.

A cursor of another list raises ``InvalidRequest``.
"""

import re
from typing import Final, NamedTuple

from spass.core.errors import InvalidPath, WorkspaceFileNotFound
from spass.core.ids import WorkspaceId
from spass.core.paging import PageSizeLimit, cursor_mismatch, decode_cursor, encode_cursor, fill_page
from spass.store.tenant_store import TenantStore
from spass.workspaces.head import list_heads, read_live_head
from spass.workspaces.paths import show
from spass.workspaces.responses import Entry, TreePage, VersionPage, VersionSummary, WorkspacePage, WorkspaceSummary
from spass.workspaces.tree import TreeAt, check_folders_above
from spass.workspaces.versions import list_versions

_MIN_PAGE_SIZE: Final = 100
"""Heads that one query reads at least: a page of few workspaces may lie behind many deleted ones."""
MAX_DELETED: Final = 1000
"""Deleted workspaces among which one request looks for others. Their heads stay, so that versions never decrease."""

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,12}")
_PLACE: Final = re.compile(r"([1-9][0-9]{0,12})/(.+)", re.DOTALL)


async def read_workspaces(store: TenantStore, cursor: str | None, limit: int) -> WorkspacePage:
    """Return up to ``limit`` workspaces in the order of their ids. A page ends early after many workspaces that were deleted."""
    owner = f"workspaces:{store.tenant}"
    after = decode_cursor(owner, cursor) if cursor is not None else None
    heads = list_heads(store, after=after, page_size=max(limit + 1, _MIN_PAGE_SIZE))
    views = ((name, WorkspaceSummary.of(name, head) if head.exists else None) async for name, head in heads)
    workspaces, next_cursor = await fill_page(owner, views, limit, most_skipped=MAX_DELETED)
    return WorkspacePage(workspaces=tuple(workspaces), next_cursor=next_cursor)


async def read_versions(store: TenantStore, workspace_id: WorkspaceId, cursor: str | None, limit: int) -> VersionPage:
    """Return up to ``limit`` versions, newest first. Raise WorkspaceNotFound if there is no such workspace."""
    head = await read_live_head(store, workspace_id)
    owner = f"versions:{store.tenant}:{workspace_id}:{head.generation}"
    after = int(decode_cursor(owner, cursor, _NUMBER)) if cursor is not None else None
    versions = await list_versions(store, workspace_id, head.generation, after=after, limit=limit + 1, newest_first=True)
    page = versions[:limit]
    next_cursor = encode_cursor(owner, str(page[-1].version)) if len(versions) > limit else None
    return VersionPage(
        versions=tuple(VersionSummary.model_validate(version, from_attributes=True) for version in page), next_cursor=next_cursor
    )


class Listing(NamedTuple):
    """A listing of the entries below ``folder``, at most ``depth`` segments deep. None is without a limit."""

    workspace: WorkspaceId
    folder: str
    depth: int | None

    def decode(self, store: TenantStore, cursor: str, version: int | None) -> "Place":
        """Return the place behind which the page of ``cursor`` begins. Raise InvalidRequest if the cursor is not of this listing,
        or of another ``version``."""
        number, _, path = decode_cursor(self._owner(store), cursor, _PLACE).partition("/")
        if version not in (None, int(number)):
            raise cursor_mismatch()
        return Place(int(number), path)

    def page(self, store: TenantStore, at: TreeAt, after: str | None, limit: int) -> TreePage:
        """Return up to ``limit`` entries that come after the path ``after``.

        Raises:
            InvalidPath: the folder is a file, or below one.
            WorkspaceFileNotFound: there is no such folder.
        """
        if not at.tree.is_folder(self.folder):
            if self.folder in at.tree.files:
                raise InvalidPath(f"{show(self.folder)} is a file in version {at.version}. Name a folder.", param="path")
            check_folders_above(at, self.folder)
            raise WorkspaceFileNotFound(f"There is no folder {show(self.folder)} in version {at.version}.", param="path")
        page: list[Entry] = []
        size = PageSizeLimit()
        next_cursor: str | None = None
        for listed in at.tree.list(self.folder, self.depth, after=after or ""):
            entry = Entry(**listed._asdict())
            if len(page) == limit or not size.add(entry.to_json()):
                next_cursor = encode_cursor(self._owner(store), f"{at.version}/{page[-1].path}")
                break
            page.append(entry)
        return TreePage(version=at.version, entries=tuple(page), next_cursor=next_cursor)

    def _owner(self, store: TenantStore) -> str:
        return f"tree:{store.tenant}:{self.workspace}:{self.depth}:{self.folder}"


class Place(NamedTuple):
    """The path of the last entry of a page, in a version."""

    version: int
    path: str
