"""A tenant's workspaces over a table and a bucket in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spass.core.ids import TenantId, WorkspaceId, random_suffix
from spass.core.time import Deadline, now_s
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from spass.workspaces.change import Author, Change, Committed
from spass.workspaces.paths import WorkspacePath, parse_path
from spass.workspaces.service import Workspaces

T = TypeVar("T")

DEFAULT = WorkspaceId("default")


@dataclass(slots=True)
class WorkspaceHarness:
    """One workspace of one tenant. ``clock`` is the time of the table, the bucket and the workspaces, in seconds."""

    clock: float = field(default_factory=now_s)
    workspace: WorkspaceId = DEFAULT
    aws: MemoryAws = field(init=False)
    store: TenantStore = field(init=False)
    workspaces: Workspaces = field(init=False)

    def __post_init__(self) -> None:
        self.aws = MemoryAws(clock=self.now)
        self.store = self.aws.for_tenant(TenantId(f"demo-{random_suffix()}"))
        self.workspaces = self.cold()

    def now(self) -> float:
        return self.clock

    def cold(self) -> Workspaces:
        """Return the workspaces of another process, with an empty cache."""
        return Workspaces(self.now)

    async def commit(self, change: Change, author: Author | None = None) -> Committed:
        return await self.workspaces.open(self.store, self.workspace).commit(change, author or Author(), Deadline.after(30))

    async def write(self, files: Mapping[str, bytes | None], expected: Mapping[str, str | None] | None = None) -> Committed:
        return await self.commit(writes(files, expected))

    async def delete(self) -> bool:
        return await self.workspaces.open(self.store, self.workspace).delete(Deadline.after(30))

    async def contents(self, version: int | None = None) -> dict[str, bytes]:
        """Return all bodies by path, as another process reads them."""
        cold = self.cold()
        at = await cold.open(self.store, self.workspace).tree(version)
        bodies = await cold.open(self.store, self.workspace).read_many(at, at.tree.paths)
        return {str(path): body for path, body in bodies.items()}

    async def object_names(self) -> Sequence[str]:
        return await self.store.objects.list_keys("ws/")


def writes(files: Mapping[str, bytes | None], expected: Mapping[str, str | None] | None = None) -> Change:
    return Change.of(paths(files), paths(expected or {}))


def paths(values: Mapping[str, T]) -> dict[WorkspacePath, T]:
    return {parse_path(path): value for path, value in values.items()}
