"""A query whose reads fail answers exactly, or as if nothing of it had happened, and the next query works."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, TypeVar

import pytest

from spass.core.errors import StorageUnavailable
from spass.core.ids import DocumentId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import CODED, Segment, read_manifest
from spass.rag.index.objects import CODES, VECTORS, SegmentObjects, code_blocks
from spass.rag.search.blocks import BlockReader, Residency
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import DIMENSIONS, RagHarness
from tests.unit.rag.search.test_reader_queries import INDEX, WrittenIndex, batches_of, run_query, write

pytestmark = pytest.mark.anyio
T = TypeVar("T")

BLOCK_ROWS: Final = 5
BUDGETS: Final = (0, 10_000, 2**20)  # nothing, codes alone, and everything
QUERY: Final = "some text"


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.index.manifest._MIN_DIMENSIONS", 1)
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 10 * DIMENSIONS)
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", BLOCK_ROWS * 4 * DIMENSIONS)
    monkeypatch.setattr("spass.rag.search.blocks.MAX_GROUP_BYTES", 1000)  # so that a query reads several groups
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._FIRST_ROWS", 3)
    monkeypatch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0)


async def write_two_segments(harness: RagHarness) -> tuple[WrittenIndex, Segment]:
    """Return the documents, and the larger segment, which has several blocks of codes."""
    written = await write(harness, batches_of(70, 30), ["d0007"])
    segments = (await read_manifest(harness.scope.store, INDEX)).segments
    assert [one.format for one in segments] == [CODED, CODED]
    segment = max(segments, key=lambda one: one.rows)
    assert len(code_blocks(segment, DIMENSIONS)) == 4
    return written, segment


async def path_of(harness: RagHarness, segment: Segment, part: str) -> str:
    return f"rag/{INDEX}/{(await read_manifest(harness.scope.store, INDEX)).generation}/{segment.id}/{part}"


async def check_answers(harness: RagHarness, worker: Rag, written: WrittenIndex) -> None:
    for query, top_k in ((QUERY, 4), ("another", 200)):
        assert await run_query(harness, worker, query, top_k) == written.best(query, top_k, {}, None)


def warnings(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Return the lines of the log since the last call, without those of information."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["level"] != "info"]


def _missing(stored: bytes) -> bytes | None:
    return None


def _empty(stored: bytes) -> bytes | None:
    return b""


def _first_block(stored: bytes) -> bytes | None:
    return stored[: 4 * BLOCK_ROWS * (DIMENSIONS + 8)]


def _part_of_a_block(stored: bytes) -> bytes | None:
    return stored[: 6 * BLOCK_ROWS * (DIMENSIONS + 8)]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("damage", [_missing, _empty, _first_block, _part_of_a_block], ids=lambda damage: damage.__name__[1:])
async def test_incomplete_codes_are_made_from_vectors_with_one_line_in_the_log(
    harness: RagHarness, budget: int, damage: Callable[[bytes], bytes | None], capsys: pytest.CaptureFixture[str]
) -> None:
    written, segment = await write_two_segments(harness)
    path = await path_of(harness, segment, CODES)
    damaged = damage(await harness.scope.store.objects.get(path))
    await harness.scope.store.objects.delete([path])
    if damaged is not None:
        await harness.scope.store.objects.put(path, damaged)
    worker = harness.cold(budget=budget)
    capsys.readouterr()
    assert await run_query(harness, worker, QUERY, 4) == written.best(QUERY, 4, {}, None)
    (line,) = warnings(capsys)
    assert str(line.pop("at")).endswith("Z")
    assert line == {
        "level": "warning",
        "event": "codes_incomplete",
        "tenant": harness.scope.store.tenant,
        "index": INDEX,
        "segment": segment.id,
    }
    await check_answers(harness, worker, written)
    if budget == max(BUDGETS):
        assert warnings(capsys) == [], "the codes that were made are in memory"


async def test_codes_that_are_too_long_are_read_as_usual(harness: RagHarness, capsys: pytest.CaptureFixture[str]) -> None:
    written, segment = await write_two_segments(harness)
    path = await path_of(harness, segment, CODES)
    await harness.scope.store.objects.put(path, await harness.scope.store.objects.get(path) + b"\x7f" * 99)
    for budget in BUDGETS:
        await check_answers(harness, harness.cold(budget=budget), written)
    assert warnings(capsys) == []


async def test_segments_of_a_later_format_are_answered_from_their_vectors(
    harness: RagHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker of this release may read what the next one wrote. It does not know those codes, so it does not read them."""
    with monkeypatch.context() as later:
        for module in ("writer", "segment_merge"):
            later.setattr(f"spass.rag.write.{module}.CODED", 2)
        written = await write(harness, batches_of(70, 30), ["d0007"])
    before = (await read_manifest(harness.scope.store, INDEX)).segments
    assert [one.format for one in before] == [2, 2]
    for segment in before:
        await harness.scope.store.objects.put(await path_of(harness, segment, CODES), b"\xff" * 9000)
    capsys.readouterr()
    for budget in BUDGETS:
        await check_answers(harness, harness.cold(budget=budget), written)
    assert warnings(capsys) == []
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0008"))
    assert [one.format for one in (await read_manifest(harness.scope.store, INDEX)).segments] == [2, 2]


@pytest.mark.parametrize("also_codes", [False, True])
async def test_without_vectors_a_query_reads_the_manifest_once_more_and_fails(
    harness: RagHarness, also_codes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _, segment = await write_two_segments(harness)
    paths = [await path_of(harness, segment, part) for part in ((VECTORS, CODES) if also_codes else (VECTORS,))]
    await harness.scope.store.objects.delete(paths)
    for budget in BUDGETS:
        with inject(FaultPlan()) as plan, pytest.raises(StorageUnavailable, match="The index is changing"):
            await run_query(harness, harness.cold(budget=budget), QUERY, 200)
        assert sum(call.operation == "GetItem" for call in plan.calls) == 3, "the last looks for the mark of a restore"
    assert warnings(capsys) == []


async def test_a_query_of_a_version_that_was_swept_answers_from_the_next_one(harness: RagHarness) -> None:
    """Its codes are in memory, and its vectors are gone."""
    written, segment = await write_two_segments(harness)
    worker = harness.cold(budget=10_000)
    await check_answers(harness, worker, written)
    path = await path_of(harness, segment, VECTORS)
    new = WrittenIndex({one.id: one for one in batches_of(25)[0]})

    class Replace(FaultPlan):
        async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
            result = await super().around(call, run)
            if call.operation == "GetItem" and sum(one.operation == "GetItem" for one in self.calls) == 1:
                with inject(FaultPlan()):
                    await harness.rag.writer.replace(harness.scope, INDEX, list(new.documents_by_id.values()))
                    await harness.scope.store.objects.delete([path])
            return result

    with inject(Replace()):
        assert await run_query(harness, worker, "never before", 7) == new.best("never before", 7, {}, None)


@pytest.mark.parametrize("fault", [Fault.THROTTLE, Fault.TIMEOUT])
@pytest.mark.parametrize("budget", BUDGETS)
async def test_after_a_read_that_failed_the_next_query_is_answered(harness: RagHarness, budget: int, fault: Fault) -> None:
    written, _ = await write_two_segments(harness)
    at = failed = 0
    while True:
        worker = harness.cold(budget=budget)
        with inject(FaultPlan(fault, at=at)) as plan:
            (found,) = await asyncio.gather(run_query(harness, worker, QUERY, 4), return_exceptions=True)
        if len(plan.calls) <= at:
            break
        if isinstance(found, StorageUnavailable):
            failed += 1
        else:
            assert found == written.best(QUERY, 4, {}, None), "the table is asked twice"
        await check_answers(harness, worker, written)
        at += 1
    assert failed >= at - 1 >= 8, "the manifest, six blocks of codes, vectors, ids, documents"


class CancelAt(FaultPlan):
    """Cancels ``task`` at the read number ``at``, from 0, before it or after it."""

    in_threads = False

    def __init__(self, at: int, *, before: bool) -> None:
        super().__init__()
        self.cancel_at = at
        self.before = before
        self.task: asyncio.Task[object] | None = None

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        is_last = len(self.calls) == self.cancel_at
        if is_last and self.before and self.task is not None:
            self.task.cancel()
        await asyncio.sleep(0)
        result = await super().around(call, run)
        if is_last and self.task is not None:
            self.task.cancel()
        return result

    async def run_call(self, run: PendingCall[T]) -> T:
        return await run()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("budget", BUDGETS)
async def test_a_cancelled_query_does_not_disturb_the_others(harness: RagHarness, budget: int, before: bool) -> None:
    written, _ = await write_two_segments(harness)
    expected = written.best(QUERY, 4, {}, None)
    at = ended = 0
    while True:
        worker = harness.cold(budget=budget)
        with inject(CancelAt(at, before=before)) as plan:
            assert isinstance(plan, CancelAt)
            task = asyncio.ensure_future(run_query(harness, worker, QUERY, 4))
            plan.task = task
            await asyncio.sleep(0)
            other = run_query(harness, worker, QUERY, 4)  # it shares the reads of the first
            cancelled, found = await asyncio.gather(task, other, return_exceptions=True)
        assert found == expected
        if isinstance(cancelled, asyncio.CancelledError):
            ended += 1
        else:
            assert cancelled == expected
        if len(plan.calls) <= at:
            break
        assert await run_query(harness, worker, QUERY, 4) == expected
        at += 1
    assert at >= ended >= 8


class SlowReads(FaultPlan):
    """Every read takes a second. ``now`` counts those that have begun and not ended."""

    now = 0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        self.now += 1
        try:
            await asyncio.sleep(1 if len(self.calls) > 3 else 0)
            return await super().around(call, run)
        finally:
            self.now -= 1


async def test_reads_ahead_of_a_query_that_ends_are_cancelled(harness: RagHarness) -> None:
    await write_two_segments(harness)
    manifest = await read_manifest(harness.scope.store, INDEX)
    objects = SegmentObjects(harness.scope.store, INDEX, manifest.generation, ObjectCache())
    before = asyncio.all_tasks()
    with inject(SlowReads()) as plan:
        assert isinstance(plan, SlowReads)
        reader = BlockReader(objects, manifest.segments, DIMENSIONS, Residency.CODES)
        async with aclosing(reader.load(await reader.select(None))) as groups:
            assert len(await anext(groups)) == 3
            while not plan.now:
                await asyncio.sleep(0)
            assert asyncio.all_tasks() > before, "the next group is being read"
        assert plan.now == 0
    assert asyncio.all_tasks() == before
