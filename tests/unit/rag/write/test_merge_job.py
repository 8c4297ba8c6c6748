"""The merge job makes one segment of several, and no row is lost, doubled or restored."""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import AwsJobs
from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.jobs import Job, MergeSegments
from spass.core.time import Deadline, now_s
from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import MAX_INLINE_BITMAP_BYTES, read_manifest
from spass.rag.write.merge_job import merge
from spass.rag.write.merge_policy import needs_merge_job
from spass.store.keys import rag_manifest
from spass.store.leases import LEASE_SECONDS
from spass.store.restored import LOST
from spass.store.tenant_store import TenantStore
from spass.store.writes import Update
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents

pytestmark = pytest.mark.anyio

HOUR = 3600.0


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends merge nothing. Four segments of one tier, or a segment with one deleted row, are merged by a job."""
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    monkeypatch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)


class RecordingJobs(AwsJobs):
    """Records the merges that are requested. A broken queue does not answer."""

    def __init__(self, store: TenantStore, *, broken: bool = False) -> None:
        super().__init__(_no_queue, _no_queue, NO_JOB_TARGETS, store.tenant)
        self.merges: list[IndexId] = []
        self.broken = broken

    async def send(self, job: Job, *, delay: int = 0) -> None:
        assert isinstance(job, MergeSegments)
        self.merges.append(job.index)
        if self.broken:
            raise StorageUnavailable("no answer")


def _no_queue() -> NoReturn:
    raise AssertionError("there is no queue")


async def run_merge(harness: RagHarness, index: IndexId) -> bool:
    return await merge(harness.scope.store, ObjectCache(), index, Deadline.after(HOUR))


async def texts_by_id(harness: RagHarness, index: IndexId) -> dict[str, str]:
    page = await harness.cold().reader.documents(harness.scope, index)
    return {document.id: document.text for document in page.documents}


async def fill(harness: RagHarness, index: IndexId, rag: Rag | None = None) -> dict[str, str]:
    """Append four segments of three rows each, and return the texts."""
    for n in range(4):
        await (rag or harness.rag).writer.append(
            harness.scope, index, documents(*((f"d{m}-{n}", f"text {m} {n}") for m in range(3)))
        )
    return {f"d{m}-{n}": f"text {m} {n}" for m in range(3) for n in range(4)}


async def test_a_merge_makes_one_segment_and_changes_nothing_else(harness: RagHarness, index: IndexId) -> None:
    expected = await fill(harness, index)
    before, answer = (
        await read_manifest(harness.scope.store, index),
        await harness.rag.reader.query(harness.scope, index, "text 2 2", 12),
    )
    assert await run_merge(harness, index) is True
    after = await read_manifest(harness.scope.store, index)
    assert (len(before.segments), len(after.segments)) == (4, 1)
    assert (after.version, after.updated_at, after.doc_count, after.text_bytes) == (
        before.version,
        before.updated_at,
        before.doc_count,
        before.text_bytes,
    )
    assert {entry.path for entry in after.garbage} == {f"{before.generation}/{segment.id}" for segment in before.segments}
    assert await texts_by_id(harness, index) == expected
    assert await harness.rag.reader.query(harness.scope, index, "text 2 2", 12) == answer
    assert (await harness.rag.writer.append(harness.scope, index, documents(("new", "neu")))).version == before.version + 1
    assert await run_merge(harness, index) is False, "no merge is due"


async def test_a_merge_keeps_the_metadata_and_times_of_documents(harness: RagHarness, index: IndexId) -> None:
    for n in range(4):
        given = [
            document.model_copy(update={"metadata": {"n": n, "ü": [n]}}) for document in documents((f"d{3 - n}", f"text {n}"))
        ]
        await harness.rag.writer.append(harness.scope, index, given)
    before = await harness.rag.reader.documents(harness.scope, index)
    assert await run_merge(harness, index)
    assert await harness.cold().reader.documents(harness.scope, index) == before


async def test_a_merge_drops_deleted_rows(harness: RagHarness, index: IndexId) -> None:
    expected = await fill(harness, index)
    await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("d0-0"))
    await harness.rag.writer.append(harness.scope, index, documents(("d1-1", "anders")))
    assert await run_merge(harness, index)
    (*_, merged) = (await read_manifest(harness.scope.store, index)).segments
    assert merged.deleted_rows == 0
    del expected["d0-0"]
    assert await texts_by_id(harness, index) == expected | {"d1-1": "anders"}


@pytest.mark.parametrize("inline_bytes", [MAX_INLINE_BITMAP_BYTES, 0], ids=["inline", "in objects"])
async def test_rows_deleted_during_a_merge_are_deleted_in_its_result(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", inline_bytes)
    monkeypatch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 10)
    expected = await fill(harness, index)
    rival = harness.cold()
    await rival.deleter.delete_document(harness.scope, index, DocumentId("d0-0"))
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: rival.deleter.delete_document(harness.scope, index, DocumentId("d1-0")),
        lambda: rival.writer.append(harness.scope, index, documents(("d1-1", "anders"), ("new", "neu"))),
        lambda: rival.deleter.delete_document(harness.scope, index, DocumentId("d2-2")),
    ]
    plan = RacingWriters(*steps)
    with inject(plan):
        assert await run_merge(harness, index)
    assert plan.count("TransactWriteItems") == len(steps) + 1
    for name in ("d0-0", "d1-0", "d2-2"):
        del expected[name]
    expected |= {"d1-1": "anders", "new": "neu"}
    assert await texts_by_id(harness, index) == expected
    manifest = await read_manifest(harness.scope.store, index)
    assert [(segment.rows, segment.deleted_rows) for segment in manifest.segments] == [(2, 0), (11, 3)]
    assert manifest.text_bytes == sum(len(text.encode()) for text in expected.values())


async def test_a_merge_whose_inputs_were_deleted_changes_nothing(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    for n in range(4):
        await rival.writer.append(harness.scope, index, documents((f"d{n}", "x")))

    async def delete_the_others() -> None:
        for n in range(3):
            await rival.deleter.delete_document(harness.scope, index, DocumentId(f"d{n}"))

    with inject(RacingWriters(delete_the_others)):
        assert await run_merge(harness, index) is False, "its inputs are not listed"
    assert await texts_by_id(harness, index) == {"d3": "x"}


async def test_a_merge_does_not_write_to_another_generation(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()

    async def recreate_index() -> None:
        await rival.deleter.delete_index(harness.scope, index)
        await rival.writer.append(harness.scope, index, documents(("d0-0", "neu")))

    for others in (recreate_index, lambda: rival.writer.replace(harness.scope, index, documents(("d0-0", "neu")))):
        await fill(harness, index)
        with inject(RacingWriters(others)):
            assert await run_merge(harness, index) is False
        assert await texts_by_id(harness, index) == {"d0-0": "neu"}
        await rival.deleter.delete_index(harness.scope, index)
    await fill(harness, index)
    with inject(RacingWriters(lambda: rival.deleter.delete_index(harness.scope, index))):
        assert await run_merge(harness, index) is False
    assert not (await read_manifest(harness.scope.store, index)).exists


async def test_an_append_deletes_rows_that_a_faster_merge_moved(harness: RagHarness, index: IndexId) -> None:
    expected = await fill(harness, index)
    with inject(RacingWriters(lambda: run_merge(harness, index))):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("d0-0", "anders"), ("new", "neu")))
    assert (answer.replaced, answer.version) == (1, 5)
    assert await texts_by_id(harness, index) == expected | {"d0-0": "anders", "new": "neu"}


async def test_one_worker_at_a_time_merges_an_index(harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await fill(harness, index)
    with pytest.raises(Crash), inject(FaultPlan(Fault.CRASH_AFTER, at=0)):
        await run_merge(harness, index)
    assert await run_merge(harness, index) is False, "the lease of the crashed worker has not expired"
    monkeypatch.setattr("spass.rag.write.merge_job.now_s", lambda: now_s() + LEASE_SECONDS)
    assert await run_merge(harness, index) is True
    assert await texts_by_id(harness, index) == expected


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.THROTTLE, Fault.REPEATED])
async def test_a_merge_with_a_fault_at_any_call_changes_nothing_and_can_be_repeated(
    harness: RagHarness, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy._MERGE_FACTOR", 2)
    later = now_s()
    monkeypatch.setattr("spass.rag.write.merge_job.now_s", lambda: later)

    async def prepared(index: IndexId) -> None:
        await harness.rag.writer.append(harness.scope, index, documents(("a", "x"), ("b", "alt"), ("d", "y")))
        await harness.rag.writer.append(harness.scope, index, documents(("b", "neu"), ("c", "z")))

    await prepared(IndexId("counted"))
    with inject(FaultPlan()) as plan:
        await run_merge(harness, IndexId("counted"))
    assert len(plan.calls) > 20, "eight reads, five puts, the swap, the lease"
    for at, call in enumerate(plan.calls):
        index = IndexId(f"{fault}-{at}")
        await prepared(index)
        with inject(FaultPlan(fault, at=at)), contextlib.suppress(Crash, SpassError):
            await run_merge(harness, index)
        assert await texts_by_id(harness, index) == {"a": "x", "b": "neu", "c": "z", "d": "y"}, (
            f"{fault} at {at} ({call.operation})"
        )
        later += LEASE_SECONDS
        await run_merge(harness, index)
        manifest = await read_manifest(harness.scope.store, index)
        assert (len(manifest.segments), manifest.version) == (1, 2), f"{fault} at {at} ({call.operation})"
        assert await texts_by_id(harness, index) == {"a": "x", "b": "neu", "c": "z", "d": "y"}


async def test_a_write_after_which_a_merge_is_due_requests_one(harness: RagHarness, index: IndexId) -> None:
    jobs = RecordingJobs(harness.scope.store)
    scope = dataclasses.replace(harness.scope, store=dataclasses.replace(harness.scope.store, jobs=jobs))
    for n in range(3):
        await harness.rag.writer.append(scope, index, documents((f"d{n}", "x")))
    assert jobs.merges == []
    await harness.rag.writer.append(scope, index, documents(("d3", "x"), ("d4", "x")))
    assert jobs.merges == [index]
    await merge(scope.store, ObjectCache(), index, Deadline.after(HOUR))
    assert jobs.merges == [index]
    await harness.rag.deleter.delete_document(scope, index, DocumentId("d0"))
    assert jobs.merges == [index]
    await harness.rag.deleter.delete_document(scope, index, DocumentId("d1"))
    assert jobs.merges == [index, index], "two of five rows are deleted"


async def test_a_write_succeeds_even_if_the_queue_for_merges_does_not_answer(harness: RagHarness, index: IndexId) -> None:
    store = dataclasses.replace(harness.scope.store, jobs=RecordingJobs(harness.scope.store, broken=True))
    scope = dataclasses.replace(harness.scope, store=store)
    versions = [(await harness.rag.writer.append(scope, index, documents((f"d{n}", "x")))).version for n in range(4)]
    assert versions == [1, 2, 3, 4]
    assert await texts_by_id(harness, index) == {f"d{n}": "x" for n in range(4)}


async def test_a_merge_without_time_requests_another_job(harness: RagHarness, index: IndexId) -> None:
    await fill(harness, index)
    jobs = RecordingJobs(harness.scope.store)
    store = dataclasses.replace(harness.scope.store, jobs=jobs)
    assert await merge(store, ObjectCache(), index, Deadline.after(1)) is False
    assert jobs.merges == [index]
    assert needs_merge_job(await read_manifest(store, index))


async def test_a_merge_of_an_incomplete_segment_fails_after_two_reads(harness: RagHarness, index: IndexId) -> None:
    """An operator deleted an object. The job fails, which is logged, and releases the lease."""
    await fill(harness, index)
    (vectors, *_) = [key for key in await harness.scope.store.objects.list_keys("rag/") if key.endswith("/vectors.npy")]
    await harness.scope.store.objects.delete([vectors])
    with inject(FaultPlan()) as plan, pytest.raises(StorageUnavailable):
        await merge(harness.scope.store, ObjectCache(), index, Deadline.after(62))
    assert sum(call.operation == "PutItem" for call in plan.calls) == 1
    assert len(plan.calls) < 100
    with pytest.raises(StorageUnavailable):
        await run_merge(harness, index)


async def test_a_merge_of_an_index_that_a_restore_marked_does_not_fail(harness: RagHarness, index: IndexId) -> None:
    """Else its job would fail again every hour, and raise an alarm."""
    store = harness.scope.store
    await fill(harness, index)
    await store.objects.delete([key for key in await store.objects.list_keys("rag/") if key.endswith("/vectors.npy")][:1])
    before = await read_manifest(store, index)
    await store.table.write(Update(rag_manifest(store.tenant, index), set={LOST: {"generation": before.generation}}))
    assert await run_merge(harness, index) is False
    assert await read_manifest(store, index) == before
