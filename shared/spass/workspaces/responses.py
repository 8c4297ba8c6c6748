"""The answers of the routes of workspaces, as clients see them, and the body of a restore."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from spass.core.ids import AgentName, MessageId, SessionId, UserId, WorkspaceId
from spass.tenancy.response_model import Count, DateTime, NextCursor, ResponseModel
from spass.tenancy.strict_body import StrictBody
from spass.workspaces.change import Committed
from spass.workspaces.head import WorkspaceHead
from spass.workspaces.paths import MAX_FILES

MAX_VERSION: Final = 10**12


class WorkspaceSummary(ResponseModel):
    """A workspace: its newest version and its size."""

    id: WorkspaceId
    version: Count
    file_count: Count
    total_bytes: Count
    created_at: DateTime
    updated_at: DateTime

    @classmethod
    def of(cls, workspace_id: WorkspaceId, head: WorkspaceHead) -> "WorkspaceSummary":
        return cls(id=workspace_id, **{name: getattr(head, name) for name in cls.model_fields if name != "id"})


class WorkspacePage(ResponseModel):
    """A page of the tenant's workspaces."""

    workspaces: tuple[WorkspaceSummary, ...]
    next_cursor: NextCursor


class Entry(ResponseModel):
    """A file or directory. `size` is in bytes; it and `sha256` are null for directories."""

    path: str
    type: Literal["file", "directory"]
    size: Count | None
    sha256: str | None


class TreePage(ResponseModel):
    """A page of the entries of `version`, by path."""

    version: Count
    entries: tuple[Entry, ...]
    next_cursor: NextCursor


class WrittenFile(ResponseModel):
    """`version` is the newest version after the write. `sha256` is null if the file was deleted."""

    version: Count
    path: str
    sha256: str | None


class WrittenTree(ResponseModel):
    """`version` is the newest version after the write, which added, changed and deleted that many files."""

    version: Count
    added: Count
    changed: Count
    deleted: Count

    @classmethod
    def of(cls, committed: Committed) -> "WrittenTree":
        return cls(version=committed.current, **committed.counts)


class VersionSummary(ResponseModel):
    """A version: who made it and why, and how many files it added, changed and deleted.

    `message` is the beginning of the message that asked for an edit. `message_id` names the stream of its turn, `run_id` the turn
    and `parent_log_id` the tool call in the audit.
    """

    version: Count
    message: str | None
    user: UserId | None
    agent: AgentName | None
    session_id: SessionId | None
    message_id: MessageId | None
    run_id: str | None
    parent_log_id: str | None
    created_at: DateTime
    added: Count
    changed: Count
    deleted: Count


class VersionPage(ResponseModel):
    """A page of a workspace's versions, newest first."""

    versions: tuple[VersionSummary, ...]
    next_cursor: NextCursor


class ComparedFile(ResponseModel):
    """A file that differs. `added` and `removed` count lines. `truncated` says that `unified` is not the whole diff; of a file
    that is over 1 MiB or not text, `unified` is empty."""

    path: str
    status: Literal["added", "changed", "deleted"]
    added: Count
    removed: Count
    unified: str
    truncated: bool


class Comparison(ResponseModel):
    """The files that differ between two versions, by path. `from` is 0 if there is no version before `to`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    from_version: Annotated[Count, Field(alias="from")]
    to: Count
    files: tuple[ComparedFile, ...]


class RestoreRequest(StrictBody):
    """The body of a restore. Without `paths`, the whole tree of `version` comes back."""

    version: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    paths: Annotated[
        list[str] | None,
        Field(min_length=1, max_length=MAX_FILES, description="Files and folders. What the version did not hold is deleted."),
    ] = None
