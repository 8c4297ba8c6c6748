"""Bodies are read in ranges: neighbours in one, ranges in parallel, and not too many at once."""

import asyncio
import io
import random
import tracemalloc
import zipfile
from contextlib import aclosing
from typing import TypeVar

import pytest

from spass.core.errors import InternalError
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import FaultPlan, inject
from spass.workspaces.change import Change
from spass.workspaces.paths import WorkspacePath
from tests.unit.workspaces.harness import WorkspaceHarness, paths

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def harness() -> WorkspaceHarness:
    return WorkspaceHarness()


class CountingReads(FaultPlan):
    """Counts the concurrent reads and their bytes. ``most`` and ``most_bytes`` are the maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = self.bytes = self.most_bytes = 0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        wanted = str(call.parameters.get("Range", "bytes=0--1")).removeprefix("bytes=").split("-", 1)
        size = int(wanted[1]) + 1 - int(wanted[0])
        self.now, self.bytes = self.now + 1, self.bytes + size
        self.most, self.most_bytes = max(self.most, self.now), max(self.most_bytes, self.bytes)
        try:
            await asyncio.sleep(0.001)
            return await super().around(call, run)
        finally:
            self.now, self.bytes = self.now - 1, self.bytes - size


async def test_neighbours_are_read_in_one_range(harness: WorkspaceHarness) -> None:
    await harness.write({f"{n:03}": b"%d" % n for n in range(500)})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    with inject(FaultPlan()) as plan:
        bodies = await harness.workspaces.open(harness.store, harness.workspace).read_many(at, at.tree.paths[100:300])
    assert bodies == {f"{n:03}": b"%d" % n for n in range(100, 300)}
    assert [call.parameters["Range"] for call in plan.calls] == ["bytes=190-789"]


async def test_distant_ranges_are_read_in_parallel_and_a_copy_once(harness: WorkspaceHarness) -> None:
    for n in range(60):
        await harness.write({f"{n:03}": b"%d" % n, f"copy of {n:03}": b"%d" % n, "empty": b""})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    with inject(CountingReads()) as plan:
        bodies = await harness.workspaces.open(harness.store, harness.workspace).read_many(at, at.tree.paths)
    expected = {name: b"%d" % n for n in range(60) for name in (f"{n:03}", f"copy of {n:03}")}
    assert bodies == {**expected, "empty": b""}
    assert len(plan.calls) == 60
    assert isinstance(plan, CountingReads)
    assert plan.most == 24


async def test_an_archive_of_large_files_is_streamed_in_bounded_memory(harness: WorkspaceHarness) -> None:
    noise = random.Random(1).randbytes(2**20)
    names = [f"{n:02}" for n in range(32)]
    for group in range(0, 32, 8):
        await harness.write({name: name.encode() + noise for name in names[group : group + 8]})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    plan = CountingReads()
    received, size = 0, 0
    tracemalloc.start()
    with inject(plan):
        async for chunk in harness.workspaces.open(harness.store, harness.workspace).archive(at):
            received, size = received + 1, size + len(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 32 * 2**20
    assert (received >= 10, 4 * 2**20 < plan.most_bytes <= 16 * 2**20) == (True, True)
    assert peak < 28 * 2**20


async def test_a_closed_archive_stops_reading(harness: WorkspaceHarness) -> None:
    for n in range(60):
        await harness.write({f"{n:03}": bytes(100_000 + n), f"{n:03}.txt": random.Random(n).randbytes(70_000)})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    plan = CountingReads()
    with inject(plan):
        async with aclosing(harness.workspaces.open(harness.store, harness.workspace).archive(at)) as chunks:
            await anext(chunks)
    calls = len(plan.calls)
    assert plan.now == 0
    await asyncio.sleep(0.02)
    assert len(plan.calls) == calls < 60


async def test_an_archive_survives_the_other_tools_checks(harness: WorkspaceHarness) -> None:
    files = {f"d{n % 7}/ü{n}": random.Random(n).randbytes(n) * (n % 5) for n in range(300)}
    await harness.commit(Change.replace_all(paths(files)))
    await harness.write({"d1/ü1": b"again", "d2/ü2": None})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree(1)
    body = b"".join([chunk async for chunk in harness.workspaces.open(harness.store, harness.workspace).archive(at)])
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        assert sum(entry.file_size for entry in archive.infolist()) == sum(map(len, files.values()))


async def test_a_damaged_pack_is_noticed(harness: WorkspaceHarness) -> None:
    await harness.write({"deflated": b"text " * 100, "stored": b"x"})
    (pack,) = (key for key in await harness.object_names() if key.endswith(".pack"))
    content = await harness.store.objects.get(pack)
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    for damaged in (content[:-1] + b"y", bytes([content[0] ^ 4]) + content[1:]):
        await harness.store.objects.put(pack, damaged)
        with pytest.raises(InternalError):
            await harness.workspaces.open(harness.store, harness.workspace).read_many(at, at.tree.paths)


async def test_a_live_version_without_its_object_is_an_internal_error(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1"})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    await harness.store.objects.delete(await harness.object_names())
    with pytest.raises(InternalError):
        await harness.workspaces.open(harness.store, harness.workspace).read(at, WorkspacePath("a"))
