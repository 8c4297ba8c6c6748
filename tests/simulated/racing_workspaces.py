"""Writers, readers and sweeps of one workspace in a simulated world. Each writer is a process that may crash or stand still."""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from spass.core.errors import NotFound, StorageUnavailable, VersionNotFound, WorkspaceConflict, WorkspaceNotFound
from spass.core.ids import TenantId, WorkspaceId
from spass.core.time import Deadline
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from spass.workspaces.change import Author, Change
from spass.workspaces.head import read_head
from spass.workspaces.objects import TreeCache
from spass.workspaces.service import Workspaces
from spass.workspaces.sweep import DELETED_SECONDS, ORPHAN_SECONDS, sweep_workspaces
from spass.workspaces.tree import TreeAt
from spass.workspaces.versions import list_versions
from tests.simulated.schedule import Process, Schedule
from tests.simulated.workspace_history import Operation, Place, WorkspaceHistory, as_paths, bodies_of, digests

T = TypeVar("T")

WORKSPACE: Final = WorkspaceId("default")
PATHS: Final = ("a", "b", "d/x", "d/y", "d/e/z", "f/g")
FOLDERS: Final = ("a", "d", "d/e", "f")
BODIES: Final = (b"", b"x", b"text " * 40, bytes(range(256)), b"y" * 300)
_STORAGE_SECONDS: Final = 30.0
_STALL_ODDS: Final = 0.02
_LONG_SLEEP: Final = 20_000.0  # seconds; sweeps run meanwhile


@dataclass(slots=True)
class WorkspaceWorld:
    """One workspace, its history, and the numbers of what happened, by name."""

    schedule: Schedule
    aws: MemoryAws = field(init=False)
    store: TenantStore = field(init=False)
    history: WorkspaceHistory = field(init=False)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aws = MemoryAws(clock=self.schedule.now)
        self.history = WorkspaceHistory(self.schedule.now)
        self.aws.table.watch = self.history.watch
        self.store = self.aws.for_tenant(TenantId("demo"))

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def new_workspaces(self) -> Workspaces:
        """Return the workspaces of a new process. Its cache holds about ten trees."""
        return Workspaces(self.schedule.now, TreeCache(40_000))

    async def check_now(self) -> None:
        """Check that every version of the workspace that exists is as the history tells, and that none of another is left."""
        current, workspaces = self.history.states[-1], self.new_workspaces()
        head = await read_head(self.store, WORKSPACE)
        assert Place(head.generation, head.version) == current
        for place, contents in self.history.contents.items():
            if place.generation == current.generation:
                at = await workspaces.open(self.store, WORKSPACE).tree(place.version)
                assert bodies_of(await workspaces.open(self.store, WORKSPACE).read_many(at, at.tree.paths)) == contents

    async def check_sweep(self) -> None:
        """Check that two sweeps after days leave exactly what the versions of the live generation name."""
        for _ in range(2):
            await asyncio.sleep(ORPHAN_SECONDS + 60)
            await sweep_workspaces(self.store, int(self.schedule.now()), Deadline.after(60))
        generation = self.history.states[-1].generation
        versions = await list_versions(self.store, WORKSPACE, generation)
        named = {f"ws/{WORKSPACE}/{generation}/{name}" for version in versions for name in version.objects}
        assert set(await self.store.objects.list_keys("")) == named
        partitions = {str(item["pk"]) for item in self.aws.table.items() if "COMMIT#" not in str(item["pk"])}
        live = {f"T#demo#WS#{WORKSPACE}#{generation}"} if generation else set[str]()
        assert partitions - {"T#demo#WS"} == live
        assert [item["sk"] for item in self.aws.table.items() if item["pk"] == "T#demo#WS"] in (["WS#default"], [])


@dataclass(slots=True)
class StallingProcess(Process):
    """A process that sometimes stands still for more than a day between its puts and its swap."""

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "TransactWriteItems" and self.schedule.rng.random() < _STALL_ODDS:
            self.paused_until = asyncio.get_running_loop().time() + 1.3 * ORPHAN_SECONDS
        return await Process.around(self, call, run)


@dataclass(slots=True)
class RacingWriter:
    """One process after the other: after a crash, the next one continues with an empty cache."""

    world: WorkspaceWorld
    name: str
    process: Process = field(init=False)
    workspaces: Workspaces = field(init=False)
    _number: int = 0

    def __post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.process = StallingProcess(schedule=self.world.schedule)
        self.workspaces = self.world.new_workspaces()

    async def run(self, steps: int) -> None:
        """Take random steps, with pauses in between."""
        rng = self.world.schedule.rng
        kinds: Sequence[tuple[Callable[[], Awaitable[None]], int]] = (
            (self.write, 30),
            (self.edit, 20),
            (self.replace_all, 4),
            (self.restore, 10),
            (self.delete_workspace, 3),
            (self.read, 12),
            (self.read_version, 8),
            (self.read_archive, 4),
        )
        for _ in range(steps):
            await asyncio.sleep((rng.choice([0.001, 0.02, 0.02, 0.1]) if rng.random() < 0.95 else _LONG_SLEEP) * rng.random())
            (step,) = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            try:
                with inject(self.process):
                    await step()
            except Crash:
                self.world.count("crashed")
                self._restart()
            except StorageUnavailable:
                self.world.count("unavailable")

    async def write(self) -> None:
        """Write or delete some files, sometimes only if a file is as the writer believes."""
        rng, expected = self.world.schedule.rng, dict[str, bytes | None]()
        paths = rng.sample(PATHS, rng.choice([1, 1, 1, 2, 4]))
        writes = {path: None if rng.random() < 0.2 else rng.choice(BODIES) for path in paths}
        if rng.random() < 0.4:
            expected[paths[0]] = rng.choice([None, *BODIES])
        await self._commit("write", writes, expected=expected)

    async def edit(self) -> None:
        """Read some files, change them and write them, unless another writer has changed them."""
        rng = self.world.schedule.rng
        at = await self.workspaces.open(self.world.store, WORKSPACE).newest()
        known = [path for path in PATHS if path in at.tree.paths] or [*PATHS]
        paths = rng.sample(known, min(len(known), rng.choice([1, 1, 2])))
        try:
            old = await self._bodies(at, paths)
        except WorkspaceNotFound:
            self._check_deleted(at)
            return
        new = {path: (old[path] or b"")[-200:] + b"%d" % rng.randrange(1000) for path in paths}
        await self._commit("edit", new, expected=old)

    async def replace_all(self) -> None:
        rng = self.world.schedule.rng
        files = {path: rng.choice(BODIES) for path in rng.sample(PATHS, rng.randrange(len(PATHS)))}
        await self._commit("replace", files, replaced=("",))

    async def restore(self) -> None:
        """Bring back an earlier version, or a folder of it."""
        rng = self.world.schedule.rng
        newest = self.world.history.states[-1].version
        version = max(1, newest - rng.randrange(8))
        try:
            at = await self.workspaces.open(self.world.store, WORKSPACE).tree(version)
            folders = [folder for folder in FOLDERS if folder in at.tree.files or at.tree.is_folder(folder)]
            paths = None if rng.random() < 0.5 or not folders else [rng.choice(folders)]
            change = Change.restore(at, paths)
            files = await self._bodies(at, [str(path) for path in change.files])
        except NotFound:
            self.world.count("nothing to restore")
            return
        generation = at.generation if files else None
        await self._commit("restore", files, replaced=change.replaced, change=change, generation=generation)

    async def _bodies(self, at: TreeAt, paths: Iterable[str]) -> dict[str, bytes | None]:
        found = [path for path in at.tree.paths if path in set(paths)]
        bodies = bodies_of(await self.workspaces.open(self.world.store, WORKSPACE).read_many(at, found))
        return {path: bodies.get(path) for path in paths}

    async def _commit(
        self,
        kind: str,
        writes: Mapping[str, bytes | None],
        *,
        expected: Mapping[str, bytes | None] | None = None,
        replaced: tuple[str, ...] = (),
        change: Change | None = None,
        generation: str | None = None,
    ) -> None:
        world, history = self.world, self.world.history
        self._number += 1
        wanted = change or Change(Change.of(as_paths(writes)).files, digests(expected or {}), replaced)
        operation = Operation(f"{self.name}-{self._number}", writes, expected or {}, replaced, generation, wanted, history.moment)
        history.begin(operation)
        author = Author(run_id=operation.id)
        try:
            deadline = Deadline.after(_STORAGE_SECONDS if world.schedule.rng.random() < 0.5 else 3 * ORPHAN_SECONDS)
            committed = await self.workspaces.open(world.store, WORKSPACE).commit(wanted, author, deadline)
        except WorkspaceConflict:
            history.check_conflict(operation)
            world.count(f"{kind}: conflict")
        except VersionNotFound:
            assert any(place.generation != generation for place in history.since(operation.first_moment))
            world.count(f"{kind}: gone")
        else:
            history.check_committed(operation, committed)
            world.count(kind if committed.version else f"{kind}: unchanged")

    async def delete_workspace(self) -> None:
        history = self.world.history
        moment = history.moment
        deleted = await self.workspaces.open(self.world.store, WORKSPACE).delete(Deadline.after(_STORAGE_SECONDS))
        states = history.since(moment)
        if deleted:
            assert any(before.generation and not after.generation for before, after in pairwise(states))
            self.world.count("deleted")
        else:
            assert any(not place.generation for place in states)

    async def read(self) -> None:
        """Read the whole newest version."""
        history = self.world.history
        moment = history.moment
        at = await self.workspaces.open(self.world.store, WORKSPACE).newest()
        place = Place(at.generation, at.version)
        assert place in history.since(moment), f"{place} was not current"
        await self._check_contents(place, at)
        self.world.count("read")

    async def _check_contents(self, place: Place, at: TreeAt) -> None:
        try:
            bodies = await self.workspaces.open(self.world.store, WORKSPACE).read_many(at, at.tree.paths)
        except WorkspaceNotFound:
            self._check_deleted(at)
            return
        assert bodies_of(bodies) == (self.world.history.contents[place] if place.generation else {})

    def _check_deleted(self, at: TreeAt) -> None:
        """Check that the tree, which a slow reader could not read, was deleted more than an hour ago."""
        history = self.world.history
        assert history.states[-1].generation != at.generation
        assert self.world.schedule.now() >= history.deleted_at[at.generation] + DELETED_SECONDS
        self.world.count("vanished")

    async def read_version(self) -> None:
        history = self.world.history
        moment = history.moment
        version = max(1, history.states[-1].version + 1 - self.world.schedule.rng.randrange(12))
        try:
            at = await self.workspaces.open(self.world.store, WORKSPACE).tree(version)
        except (VersionNotFound, WorkspaceNotFound):
            missing = (Place(place.generation, version) not in history.contents for place in history.since(moment))
            old = (place.version < version for place in history.since(moment))
            assert any(missing) or any(old), f"version {version} was there all the time"
            self.world.count("no version")
            return
        assert at.version == version
        await self._check_contents(Place(at.generation, version), at)
        self.world.count("read version")

    async def read_archive(self) -> None:
        at = await self.workspaces.open(self.world.store, WORKSPACE).newest()
        chunks: list[bytes] = []
        try:
            async for chunk in self.workspaces.open(self.world.store, WORKSPACE).archive(at):
                chunks.append(chunk)
        except WorkspaceNotFound:
            self._check_deleted(at)
            return
        with zipfile.ZipFile(io.BytesIO(b"".join(chunks))) as archive:
            bodies = {name: archive.read(name) for name in archive.namelist()}
        place = Place(at.generation, at.version)
        assert bodies == (self.world.history.contents[place] if at.generation else {})
        self.world.count("archive")


async def sweep_for_ever(world: WorkspaceWorld) -> None:
    """Sweep about every half hour, in a new process each time."""
    rng = world.schedule.rng
    while True:
        await asyncio.sleep(3600 * rng.random())
        try:
            with inject(world.schedule.process()):
                swept = await sweep_workspaces(world.store, int(world.schedule.now()), Deadline.after(60))
        except (Crash, StorageUnavailable):
            world.count("sweep failed")
        else:
            world.counts["generations swept"] = world.counts.get("generations swept", 0) + swept.generations
            world.counts["orphans swept"] = world.counts.get("orphans swept", 0) + swept.orphans


async def race(world: WorkspaceWorld, *, writers: int, steps: int) -> None:
    """Let writers race while the sweep runs, and check the history at the end."""
    sweeping = asyncio.create_task(sweep_for_ever(world))
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(writers):
                group.create_task(RacingWriter(world, f"w{number}").run(steps))
    finally:
        sweeping.cancel()
        await asyncio.wait([sweeping])
    if not sweeping.cancelled():
        sweeping.result()
    await world.schedule.calm()
    await world.check_now()
    await world.check_sweep()
    await world.check_now()
