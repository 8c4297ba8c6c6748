"""The sweep removes garbage and orphans after their time, and nothing else."""

import contextlib
import dataclasses
import time

import pytest

from spass.core.errors import SpassError
from spass.core.ids import DocumentId, IndexId
from spass.core.time import Deadline
from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import read_manifest
from spass.rag.write.merge_job import merge
from spass.rag.write.merge_policy import needs_merge_job
from spass.rag.write.sweep import GARBAGE_SECONDS, ORPHAN_SECONDS, SweepResult, sweep
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents
from tests.unit.rag.write.test_merge_job import RecordingJobs

pytestmark = pytest.mark.anyio

SEGMENT_OBJECTS = 5
BEFORE_AN_HOUR = GARBAGE_SECONDS - 60
AFTER_AN_HOUR = GARBAGE_SECONDS + 60
AFTER_A_DAY = ORPHAN_SECONDS + 60


@pytest.fixture(autouse=True)
def no_inline_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)


async def run_sweep(harness: RagHarness, after: int) -> SweepResult:
    return await sweep(harness.scope.store, int(time.time()) + after, Deadline.after(60))


async def stored_keys(harness: RagHarness, index: IndexId) -> list[str]:
    return await harness.scope.store.objects.list_keys(f"rag/{index}/")


async def texts_by_id(harness: RagHarness, index: IndexId) -> dict[str, str]:
    page = await harness.cold().reader.documents(harness.scope, index)
    return {document.id: document.text for document in page.documents}


async def test_garbage_of_a_replace_is_deleted_after_an_hour(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    await harness.rag.writer.replace(harness.scope, index, documents(("b", "neu")))
    assert await run_sweep(harness, BEFORE_AN_HOUR) == SweepResult()
    assert len(await stored_keys(harness, index)) == 2 * SEGMENT_OBJECTS
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult(garbage=SEGMENT_OBJECTS)
    assert len(await stored_keys(harness, index)) == SEGMENT_OBJECTS
    manifest = await read_manifest(harness.scope.store, index)
    assert (manifest.garbage, manifest.version, manifest.revision) == ((), 2, 2)
    assert await texts_by_id(harness, index) == {"b": "neu"}
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult()


async def test_all_objects_of_a_deleted_index_are_deleted_and_its_version_stays(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "alt")))
    await harness.rag.deleter.delete_index(harness.scope, index)
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult(garbage=SEGMENT_OBJECTS)
    assert await stored_keys(harness, index) == []
    assert (await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))).version == 3


async def test_a_replaced_bitmap_is_deleted_and_its_segment_stays(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    for n in range(3):
        await harness.rag.deleter.delete_document(harness.scope, index, DocumentId(f"d{n}"))
    assert len(await stored_keys(harness, index)) == SEGMENT_OBJECTS + 3
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult(garbage=2)
    assert len(await stored_keys(harness, index)) == SEGMENT_OBJECTS + 1
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult()
    assert set(await texts_by_id(harness, index)) == {f"d{n}" for n in range(3, 9)}


async def test_objects_that_no_version_listed_are_deleted_after_a_day(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "x")))
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=1 + SEGMENT_OBJECTS)), pytest.raises(Crash):
        await harness.cold().writer.replace(harness.scope, index, documents(("b", "y")))
    assert len(await stored_keys(harness, index)) == 2 * SEGMENT_OBJECTS
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult()
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult(orphans=SEGMENT_OBJECTS)
    assert await texts_by_id(harness, index) == {"a": "x"}


async def test_orphans_of_an_index_without_a_manifest_are_deleted(harness: RagHarness, index: IndexId) -> None:
    await harness.scope.store.objects.put(f"rag/{index}/gen_1/seg_1/ids", b"x")
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult(orphans=1)
    assert await stored_keys(harness, index) == []


async def test_an_old_object_that_became_garbage_now_stays_for_an_hour(harness: RagHarness, index: IndexId) -> None:
    """A reader of the version before may still need it."""
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.index.manifest.now_s", lambda: int(time.time()) + AFTER_A_DAY)
        await harness.rag.deleter.delete_index(harness.scope, index)
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult()
    assert len(await stored_keys(harness, index)) == SEGMENT_OBJECTS
    assert await run_sweep(harness, AFTER_A_DAY + GARBAGE_SECONDS) == SweepResult(garbage=SEGMENT_OBJECTS)


async def test_garbage_beyond_the_list_of_the_manifest_is_deleted_after_a_day(harness: RagHarness, index: IndexId) -> None:
    for n in range(70):
        await harness.rag.writer.replace(harness.scope, index, documents(("a", str(n))))
    assert (await run_sweep(harness, AFTER_AN_HOUR)).garbage == 64 * SEGMENT_OBJECTS
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult(orphans=5 * SEGMENT_OBJECTS)
    assert await texts_by_id(harness, index) == {"a": "69"}


async def test_a_write_during_a_sweep_is_kept_and_the_next_sweep_removes_the_entries(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "1")))
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "2")))
    rival = harness.cold()

    with inject(RacingWriters(lambda: rival.writer.replace(harness.scope, index, documents(("a", "3"))), operation="UpdateItem")):
        assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult(garbage=SEGMENT_OBJECTS)
    manifest = await read_manifest(harness.scope.store, index)
    assert (len(manifest.garbage), manifest.version) == (2, 3)
    assert await texts_by_id(harness, index) == {"a": "3"}
    assert await run_sweep(harness, AFTER_AN_HOUR) == SweepResult(garbage=SEGMENT_OBJECTS)
    assert (await read_manifest(harness.scope.store, index)).garbage == ()


async def test_a_sweep_during_a_write_does_not_make_it_plan_again(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "1")))
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "2")))
    plan = RacingWriters(lambda: run_sweep(harness, AFTER_AN_HOUR))
    with inject(plan):
        assert (await harness.rag.writer.append(harness.scope, index, documents(("b", "x")))).version == 3
    assert plan.count("TransactWriteItems") == 1
    assert await texts_by_id(harness, index) == {"a": "2", "b": "x"}


async def test_a_reader_whose_version_was_swept_reads_the_current_one(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    reader = harness.cold().reader

    async def replace_and_sweep() -> None:
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "neu")))
        await run_sweep(harness, AFTER_AN_HOUR)

    with inject(RacingWriters(replace_and_sweep, operation="GetObject")):
        answer = await reader.query(harness.scope, index, "neu", 1)
    assert ([hit.text for hit in answer.results], answer.version) == (["neu"], 2)


@pytest.mark.parametrize("fault", list(Fault))
async def test_the_next_sweep_completes_one_that_failed_at_any_call(harness: RagHarness, fault: Fault) -> None:
    at = 0
    while True:
        index = IndexId(f"{fault}-{at}")
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "neu")))
        with inject(FaultPlan(fault, at=at)) as plan, contextlib.suppress(Crash, SpassError):
            await run_sweep(harness, AFTER_AN_HOUR)
        await run_sweep(harness, AFTER_AN_HOUR)
        assert (await read_manifest(harness.scope.store, index)).garbage == ()
        assert len(await stored_keys(harness, index)) == SEGMENT_OBJECTS, f"{fault} at {at}"
        assert await texts_by_id(harness, index) == {"a": "neu"}
        if len(plan.calls) <= at:
            break
        at += 1
    assert at > 4, "two queries, a listing, the deletion, the update of the entries, the listing of all objects"


async def test_a_sweep_deletes_nothing_of_another_tenant(harness: RagHarness, index: IndexId) -> None:
    other = harness.scope_of("other")
    await harness.rag.writer.append(other, index, documents(("a", "x")))
    await harness.rag.deleter.delete_index(other, index)
    assert await run_sweep(harness, AFTER_A_DAY) == SweepResult()
    assert len(await other.store.objects.list_keys("rag/")) == SEGMENT_OBJECTS


async def test_a_sweep_requests_a_merge_whose_message_was_lost(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    for n in range(4):
        await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", "x")))
    assert needs_merge_job(await read_manifest(harness.scope.store, index))
    jobs = RecordingJobs(harness.scope.store)
    store = dataclasses.replace(harness.scope.store, jobs=jobs)
    assert await sweep(store, int(time.time()), Deadline.after(60)) == SweepResult(merges=1)
    assert jobs.merges == [index]
    await merge(store, ObjectCache(), index, Deadline.after(3600))
    assert await sweep(store, int(time.time()), Deadline.after(60)) == SweepResult()
