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
from spass.rag.write.merge_policy import merge_due
from spass.rag.write.sweep import GARBAGE_SECONDS, ORPHAN_SECONDS, SweepResult, sweep
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents
from tests.unit.rag.write.test_merge_job import RecordingJobs

pytestmark = pytest.mark.anyio

PARTS = 5
SOON = GARBAGE_SECONDS - 60
AN_HOUR_ON = GARBAGE_SECONDS + 60
A_DAY_ON = ORPHAN_SECONDS + 60


@pytest.fixture(autouse=True)
def bitmaps_in_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.write.deleted_rows.MAX_INLINE_BITMAP_BYTES", 0)
    monkeypatch.setattr("spass.aws.swap._MAX_BACKOFF_SECONDS", 0)


async def swept(harness: RagHarness, after: int) -> SweepResult:
    return await sweep(harness.scope.store, int(time.time()) + after, Deadline.after(60))


async def stored(harness: RagHarness, index: IndexId) -> list[str]:
    return await harness.scope.store.objects.list_keys(f"rag/{index}/")


async def contents(harness: RagHarness, index: IndexId) -> dict[str, str]:
    found = await harness.cold().reader.documents(harness.scope, index)
    return {document.id: document.text for document in found.documents}


async def test_what_a_replace_retired_goes_an_hour_later(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    await harness.rag.writer.replace(harness.scope, index, documents(("b", "neu")))
    assert await swept(harness, SOON) == SweepResult()
    assert len(await stored(harness, index)) == 2 * PARTS
    assert await swept(harness, AN_HOUR_ON) == SweepResult(garbage=PARTS)
    assert len(await stored(harness, index)) == PARTS
    manifest = await read_manifest(harness.scope.store, index)
    assert (manifest.garbage, manifest.version, manifest.revision) == ((), 2, 2)
    assert await contents(harness, index) == {"b": "neu"}
    assert await swept(harness, AN_HOUR_ON) == SweepResult()


async def test_of_a_deleted_index_nothing_stays_but_its_version(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "alt")))
    await harness.rag.deleter.delete_index(harness.scope, index)
    assert await swept(harness, AN_HOUR_ON) == SweepResult(garbage=PARTS)
    assert await stored(harness, index) == []
    assert (await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))).version == 3


async def test_a_bitmap_that_was_replaced_goes_and_the_segment_stays(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    for n in range(3):
        await harness.rag.deleter.delete_document(harness.scope, index, DocumentId(f"d{n}"))
    assert len(await stored(harness, index)) == PARTS + 3
    assert await swept(harness, AN_HOUR_ON) == SweepResult(garbage=2)
    assert len(await stored(harness, index)) == PARTS + 1
    assert await swept(harness, A_DAY_ON) == SweepResult()
    assert set(await contents(harness, index)) == {f"d{n}" for n in range(3, 9)}


async def test_what_was_never_listed_goes_a_day_later(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "x")))
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=1 + PARTS)), pytest.raises(Crash):
        await harness.cold().writer.replace(harness.scope, index, documents(("b", "y")))
    assert len(await stored(harness, index)) == 2 * PARTS
    assert await swept(harness, AN_HOUR_ON) == SweepResult()
    assert await swept(harness, A_DAY_ON) == SweepResult(orphans=PARTS)
    assert await contents(harness, index) == {"a": "x"}


async def test_also_of_an_index_that_never_was(harness: RagHarness, index: IndexId) -> None:
    await harness.scope.store.objects.put(f"rag/{index}/gen_1/seg_1/ids", b"x")
    assert await swept(harness, A_DAY_ON) == SweepResult(orphans=1)
    assert await stored(harness, index) == []


async def test_an_old_object_that_was_retired_just_now_has_its_hour(harness: RagHarness, index: IndexId) -> None:
    """By the clock of the sweep it is a day old; but a reader may be at it."""
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.index.manifest.now_s", lambda: int(time.time()) + A_DAY_ON)
        await harness.rag.deleter.delete_index(harness.scope, index)
    assert await swept(harness, A_DAY_ON) == SweepResult()
    assert len(await stored(harness, index)) == PARTS
    assert await swept(harness, A_DAY_ON + GARBAGE_SECONDS) == SweepResult(garbage=PARTS)


async def test_more_than_a_manifest_remembers_is_found_by_the_day(harness: RagHarness, index: IndexId) -> None:
    for n in range(70):
        await harness.rag.writer.replace(harness.scope, index, documents(("a", str(n))))
    assert (await swept(harness, AN_HOUR_ON)).garbage == 64 * PARTS
    assert await swept(harness, A_DAY_ON) == SweepResult(orphans=5 * PARTS)
    assert await contents(harness, index) == {"a": "69"}


async def test_a_writer_in_between_loses_nothing_and_the_next_sweep_takes_the_entries_out(
    harness: RagHarness, index: IndexId
) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "1")))
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "2")))
    rival = harness.cold()

    with inject(RacingWriters(lambda: rival.writer.replace(harness.scope, index, documents(("a", "3"))), operation="UpdateItem")):
        assert await swept(harness, AN_HOUR_ON) == SweepResult(garbage=PARTS)
    manifest = await read_manifest(harness.scope.store, index)
    assert (len(manifest.garbage), manifest.version) == (2, 3)
    assert await contents(harness, index) == {"a": "3"}
    assert await swept(harness, AN_HOUR_ON) == SweepResult(garbage=PARTS)
    assert (await read_manifest(harness.scope.store, index)).garbage == ()


async def test_a_sweep_beside_a_write_under_way_does_not_disturb_it(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "1")))
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "2")))
    plan = RacingWriters(lambda: swept(harness, AN_HOUR_ON))
    with inject(plan):
        assert (await harness.rag.writer.append(harness.scope, index, documents(("b", "x")))).version == 3
    assert plan.count("TransactWriteItems") == 1
    assert await contents(harness, index) == {"a": "2", "b": "x"}


async def test_a_reader_whose_version_was_swept_answers_for_the_next_one(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
    reader = harness.cold().reader

    async def gone() -> None:
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "neu")))
        await swept(harness, AN_HOUR_ON)

    with inject(RacingWriters(gone, operation="GetObject")):
        answer = await reader.query(harness.scope, index, "neu", 1)
    assert ([hit.text for hit in answer.results], answer.version) == (["neu"], 2)


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_sweep_that_breaks_off_is_ended_by_the_next(harness: RagHarness, fault: Fault) -> None:
    at = 0
    while True:
        index = IndexId(f"{fault}-{at}")
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "alt")))
        await harness.rag.writer.replace(harness.scope, index, documents(("a", "neu")))
        with inject(FaultPlan(fault, at=at)) as plan, contextlib.suppress(Crash, SpassError):
            await swept(harness, AN_HOUR_ON)
        await swept(harness, AN_HOUR_ON)
        assert (await read_manifest(harness.scope.store, index)).garbage == ()
        assert len(await stored(harness, index)) == PARTS, f"{fault} at {at}"
        assert await contents(harness, index) == {"a": "neu"}
        if len(plan.calls) <= at:
            break
        at += 1
    assert at > 4, "two queries, a listing, the objects, the entries, the listing of all"


async def test_another_tenants_indices_are_not_looked_at(harness: RagHarness, index: IndexId) -> None:
    other = harness.tenant("other")
    await harness.rag.writer.append(other, index, documents(("a", "x")))
    await harness.rag.deleter.delete_index(other, index)
    assert await swept(harness, A_DAY_ON) == SweepResult()
    assert len(await other.store.objects.list_keys("rag/")) == PARTS


async def test_an_index_whose_merge_never_came_is_merged_after_all(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    for n in range(4):
        await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", "x")))
    assert merge_due(await read_manifest(harness.scope.store, index))
    jobs = RecordingJobs(harness.scope.store)
    store = dataclasses.replace(harness.scope.store, jobs=jobs)
    assert await sweep(store, int(time.time()), Deadline.after(60)) == SweepResult(merges=1)
    assert jobs.merges == [index]
    await merge(store, ObjectCache(), index, Deadline.after(3600))
    assert await sweep(store, int(time.time()), Deadline.after(60)) == SweepResult()
