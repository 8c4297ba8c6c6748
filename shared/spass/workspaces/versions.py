"""The record of one version: who made it, what it changed, and the names of its objects. A version never changes."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from spass.core.ids import AgentName, MessageId, SessionId, TenantId, UserId, WorkspaceId
from spass.core.json import replace_surrogates
from spass.core.time import Timestamp
from spass.store.codec import decode, encode
from spass.store.keys import VERSION_PREFIX, workspace_version, workspace_versions_partition
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put
from spass.workspaces.change import MAX_MESSAGE_CHARACTERS, Author, Body, ChangedFile, Committed
from spass.workspaces.head import version_not_found
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.text import visible_sha256
from spass.workspaces.tree import TreeFile

_MAX_CONTENTS: Final = 64
_MAX_CONTENT_BYTES: Final = 2 * 2**20
_CONTENT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Version:
    """A version. ``tree`` and ``pack`` name its objects; without new bodies, it has no pack.

    ``contents`` are the keys of the files that it brought, one after another (``content_key``): of a whole content, and of its
    visible characters. It is None if they are too many or too large, or if stored files are among them.
    """

    version: int
    tree: str
    pack: str | None
    added: int
    changed: int
    deleted: int
    created_at: Timestamp
    user: UserId | None = None
    agent: AgentName | None = None
    session_id: SessionId | None = None
    message_id: MessageId | None = None
    run_id: str | None = None
    parent_log_id: str | None = None
    message: str | None = None
    contents: str | None = None

    @classmethod
    def of(
        cls, committed: Committed, author: Author, *, tree: str, pack: str | None, at: Timestamp, contents: str | None
    ) -> "Version":
        message = replace_surrogates(author.message[:MAX_MESSAGE_CHARACTERS]) if author.message else None
        origin = asdict(replace(author, message=message))
        added, changed, deleted = committed.counts.values()
        return cls(committed.current, tree, pack, added, changed, deleted, at, contents=contents, **origin)

    @property
    def content_keys(self) -> Iterator[str]:
        """Yield the keys in ``contents``."""
        contents = self.contents or ""
        return (contents[at : at + _CONTENT_DIGITS] for at in range(0, len(contents), _CONTENT_DIGITS))

    @property
    def files(self) -> int:
        """The number of files that it changed."""
        return self.added + self.changed + self.deleted

    @property
    def objects(self) -> Sequence[str]:
        """The names of its objects."""
        return [self.tree, self.pack] if self.pack else [self.tree]


def content_key(path: WorkspacePath, sha256: str) -> str:
    """Return a short key of the content with ``sha256`` at ``path``."""
    return hashlib.sha256(f"{path}\0{sha256}".encode()).hexdigest()[:_CONTENT_DIGITS]


def encode_contents(files: Sequence[ChangedFile]) -> str | None:
    """Return the ``contents`` of a version that changed ``files``."""
    if len(files) > _MAX_CONTENTS or any(isinstance(file.after, TreeFile) for file in files):
        return None
    bodies = [(file.path, file.after) for file in files if isinstance(file.after, Body)]
    if sum(body.size for _, body in bodies) > _MAX_CONTENT_BYTES:
        return None
    hashes = {(path, sha256): None for path, body in bodies for sha256 in (body.sha256, visible_sha256(body.content))}
    return "".join(content_key(path, sha256) for path, sha256 in hashes)


async def read_version(store: TenantStore, workspace_id: WorkspaceId, generation: str, number: int) -> Version:
    """Return a version of the generation. Raise VersionNotFound if the generation has no such version."""
    item = await store.table.get(workspace_version(store.tenant, workspace_id, generation, number))
    if item is None:
        raise version_not_found(workspace_id, number)
    return decode(Version, item)


async def list_versions(
    store: TenantStore,
    workspace_id: WorkspaceId,
    generation: str,
    *,
    after: int | None = None,
    limit: int | None = None,
    newest_first: bool = False,
) -> Sequence[Version]:
    """Return up to ``limit`` versions of the generation that come after the number ``after`` in their order."""
    items = await store.table.query(
        workspace_versions_partition(store.tenant, workspace_id, generation),
        prefix=VERSION_PREFIX,
        after=None if after is None else workspace_version(store.tenant, workspace_id, generation, after).sk,
        limit=limit,
        newest_first=newest_first,
    )
    return [decode(Version, item) for item in items]


def version_put(tenant: TenantId, workspace_id: WorkspaceId, generation: str, version: Version) -> Put:
    """Return the write that stores a new version."""
    return Put(workspace_version(tenant, workspace_id, generation, version.version), encode(version), ITEM_ABSENT)
