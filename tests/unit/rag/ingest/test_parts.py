"""A large file has one message for each part. Messages may arrive in any order, twice, late or never."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, UpstreamError, UpstreamRejected
from spass.core.ids import DocumentId, IndexId, TenantId, UploadId
from spass.core.jobs import IngestUpload, body_of
from spass.core.time import Deadline, now_s
from spass.models.types import EmbeddingReply
from spass.rag.ingest.lease import MessageLease
from spass.rag.ingest.parts import MAX_QUEUED_PARTS, lease_part, publish_parts
from spass.rag.ingest.plan import Position
from spass.rag.ingest.sweep import SweptUploads, sweep_uploads
from spass.rag.ingest.transitions import end_failed, restart
from spass.rag.ingest.upload_record import ABANDONED, read_record
from spass.store import keys
from spass.store.codec import encode
from spass.store.leases import LeaseLost
from spass.store.table import ConditionFailed
from spass.store.writes import Update, Value
from spass.testing.faults import Crash
from tests.unit.rag.ingest.harness import INDEX, Calls, IngestHarness, jsonl_file, lines, numbered_texts

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
DOCUMENTS = numbered_texts(40)  # in twenty parts
PARTS = 20
SIZE = len(jsonl_file(DOCUMENTS))


@pytest.fixture(autouse=True)
def parts_of_two_lines(harness: IngestHarness) -> None:
    size = 2 * len(lines(("d0000", "text 0")))
    harness.change_settings(small_bytes=size, part_bytes=size)


async def plan_upload(harness: IngestHarness, path: str = PATH) -> UploadId:
    """Put a file of twenty parts, and let a worker plan it. The worker sends the first parts to the queue."""
    assert await harness.deliver(harness.put(path, jsonl_file(DOCUMENTS)))
    return (await harness.only_upload(IndexId(path.partition("/")[0]))).id


def fail(_: Sequence[str]) -> None:
    raise UpstreamError("down")


async def test_each_part_is_a_message_and_the_last_one_ends_the_upload(harness: IngestHarness) -> None:
    await plan_upload(harness)
    upload = await harness.only_upload()
    assert (upload.status, upload.bytes_total, upload.documents_ingested) == ("running", SIZE, 0)
    assert [job.part for job in await harness.deliver_all()] == list(range(PARTS))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.bytes_done) == ("succeeded", 40, SIZE)
    assert await harness.texts() == DOCUMENTS


async def test_a_small_file_is_ingested_by_the_worker_that_planned_it(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))))
    assert harness.receive() == []
    assert (await harness.only_upload()).status == "succeeded"


async def test_a_file_has_at_most_eight_parts_on_the_queue(harness: IngestHarness) -> None:
    await plan_upload(harness)
    messages = harness.receive()
    assert len(messages) == MAX_QUEUED_PARTS
    while messages:
        assert await harness.deliver(messages.pop())
        messages += harness.receive()
        assert len(messages) <= MAX_QUEUED_PARTS
    assert (await harness.only_upload()).status == "succeeded"


async def test_large_files_of_a_tenant_share_the_limit_of_queued_parts(harness: IngestHarness) -> None:
    """A second file may have half of the parts on the queue, and all of them after the first file has ended."""
    await plan_upload(harness)
    await plan_upload(harness, "other/a.jsonl")
    messages: dict[str, list[str]] = {"first": [], "second": []}

    def collect() -> None:
        for body in harness.receive():
            messages["first" if f'"{INDEX}"' in body else "second"].append(body)

    collect()
    assert [len(bodies) for bodies in messages.values()] == [MAX_QUEUED_PARTS, MAX_QUEUED_PARTS // 2]
    for _ in range(6):
        for bodies in messages.values():
            assert await harness.deliver(bodies.pop(0))
        collect()
    assert [len(bodies) for bodies in messages.values()] == [MAX_QUEUED_PARTS // 2] * 2
    while messages["first"]:
        assert await harness.deliver(messages["first"].pop(0))
        collect()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.deliver(messages["second"].pop(0))
    collect()
    assert len(messages["second"]) == MAX_QUEUED_PARTS


async def test_each_of_many_large_files_has_a_part_on_the_queue(harness: IngestHarness) -> None:
    for number in range(MAX_QUEUED_PARTS + 4):
        await plan_upload(harness, f"i{number}/a.jsonl")
        assert len(harness.receive()) == max(1, MAX_QUEUED_PARTS // (number + 1))


async def test_a_small_file_waits_only_for_the_queued_parts_of_another_tenant(harness: IngestHarness) -> None:
    """Deliver the messages in order: the small file is done before most parts of the large one are on the queue."""
    other = replace(harness, tenant=TenantId("other"))
    await plan_upload(harness)
    messages = [*harness.receive(), other.put(PATH, jsonl_file(numbered_texts(1)))]
    delivery_count = 0
    while (await other.uploads.list(other.scope, INDEX)).uploads == ():
        body = messages.pop(0)
        await (other if other.tenant in body else harness).deliver(body)
        messages += harness.receive()
        delivery_count += 1
    assert delivery_count == MAX_QUEUED_PARTS + 1
    assert (await other.only_upload()).status == "succeeded"
    assert (await harness.only_upload()).documents_ingested == 2 * MAX_QUEUED_PARTS


async def test_duplicate_messages_change_and_send_nothing(harness: IngestHarness) -> None:
    event = harness.put(PATH, jsonl_file(DOCUMENTS))
    assert await harness.deliver(event)
    assert await harness.deliver(event)
    messages = harness.receive()
    assert len(messages) == MAX_QUEUED_PARTS
    while messages:
        body = messages.pop(0)
        for _ in range(3):
            assert await harness.deliver(body)
        messages += harness.receive()
        assert len(messages) <= MAX_QUEUED_PARTS
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())
    for body in (event, harness.part((await harness.only_upload()).id, 3)):
        assert await harness.deliver(body)
    assert harness.receive() == []


async def test_a_duplicate_is_dropped_while_a_part_is_leased(harness: IngestHarness) -> None:
    upload = await plan_upload(harness)
    body = harness.part(upload, 0)

    class DuplicateDuringEmbedding(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            other = harness.rival()
            # A copy with another id is dropped. The same message stays on the queue: the worker that leased the part may be dead.
            assert await other.deliver(body, message="another")
            assert not await other.deliver(body, message="m", receives=2)
            assert other.calls.texts == []
            return await Calls.embed(self, scope, texts)

    harness.calls = DuplicateDuringEmbedding()
    assert await harness.deliver(body, message="m")
    assert (await harness.only_upload()).documents_ingested == 2


async def test_the_part_of_a_dead_worker_continues_at_its_position(harness: IngestHarness) -> None:
    # Each lease has expired when it begins, so that the next worker need not wait.
    harness.change_settings(batch_documents=1, lease_seconds=-1)
    upload = await plan_upload(harness)

    def die(texts: Sequence[str]) -> None:
        if "text 1" in texts:
            raise Crash

    harness.calls.before_embedding = die
    with pytest.raises(Crash):
        await harness.deliver(harness.part(upload, 0), message="m")
    harness.calls.before_embedding = lambda _: None
    assert await harness.deliver(harness.part(upload, 0), message="m", receives=2)
    assert harness.calls.texts == ["text 0", "text 1"]


async def test_no_part_is_skipped_if_a_worker_dies_before_it_sends_the_next(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plan_upload(harness)
    messages = harness.receive()

    async def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.worker.publish_parts", die)
        for body in messages:
            with pytest.raises(Crash):
                await harness.deliver(body)
    assert harness.receive() == []
    for body in messages:
        assert await harness.deliver(body)
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())


async def test_an_abandoned_upload_without_queued_parts_can_continue(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await plan_upload(harness)

    async def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.worker.publish_parts", die)
        for body in harness.receive():
            with pytest.raises(Crash):
                await harness.deliver(body)
    assert await sweep_uploads(harness.store, now_s() + 25 * 3600, Deadline.after(10)) == SweptUploads(abandoned=1)
    assert await harness.deliver(body_of(IngestUpload(harness.tenant, INDEX, upload)))
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == DOCUMENTS


async def test_a_worker_whose_time_is_up_sends_its_part_to_the_end_of_the_queue(harness: IngestHarness) -> None:
    harness.change_settings(batch_documents=1)
    upload = await plan_upload(harness)
    harness.receive()
    # 60 seconds are less than LAST_SECONDS: the worker stops after one batch.
    assert await harness.deliver(harness.part(upload, 5), seconds=60)
    assert harness.receive_parts() == [5]
    assert (await harness.only_upload()).status == "running"
    assert await harness.deliver(harness.part(upload, 5), seconds=60)
    # Part 5 is done. Parts 0 to 7 were sent before, so the worker sends part 8.
    assert harness.receive_parts() == [MAX_QUEUED_PARTS]


async def test_a_permanent_error_ends_all_parts(harness: IngestHarness) -> None:
    await plan_upload(harness)
    first, *rest = harness.receive()
    assert await harness.deliver(first)
    await harness.rag.deleter.delete_index(harness.scope, INDEX)
    for body in rest:
        assert await harness.deliver(body)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.errors[0].code) == ("failed", 2, "index_replaced")


async def test_the_failure_of_the_fifth_delivery_of_a_part_fails_the_upload(harness: IngestHarness) -> None:
    upload = await plan_upload(harness)
    messages = harness.receive()
    assert await harness.deliver(messages.pop())
    messages += harness.receive()
    harness.calls.before_embedding = fail
    for receives in range(1, 5):
        assert not await harness.deliver(harness.part(upload, 1), receives=receives)
        assert (await harness.only_upload()).status == "running"
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    failed = await harness.only_upload()
    assert (failed.status, failed.documents_ingested) == ("failed", 2)
    assert [(error.line, error.code) for error in failed.errors] == [(None, "upstream_error")]
    for body in messages:
        if body != harness.part(upload, 1):
            assert await harness.deliver(body), "messages of other parts are dropped"
    assert (await harness.only_upload()).status == "failed"


@pytest.mark.parametrize("source", ["dead letter", "event", "operator"])
async def test_a_failed_upload_continues_when_its_message_is_sent_again(harness: IngestHarness, source: str) -> None:
    event = harness.put(PATH, jsonl_file(DOCUMENTS))
    assert await harness.deliver(event)
    upload = (await harness.only_upload()).id
    others = [body for body in harness.receive() if body != harness.part(upload, 1)]
    harness.calls.before_embedding = fail
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    for body in others:
        assert await harness.deliver(body)
    harness.calls.before_embedding = lambda _: None
    operator_message = f'{{"job": "ingest", "tenant": "{harness.tenant}", "index": "{INDEX}", "upload": "{upload}"}}'
    assert await harness.deliver({"dead letter": harness.part(upload, 1), "event": event, "operator": operator_message}[source])
    assert (await harness.only_upload()).status == "running"
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == DOCUMENTS
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())


async def test_an_upload_fails_if_the_model_refuses_too_many_documents(harness: IngestHarness) -> None:
    harness.change_settings(max_refused=1)
    upload = await plan_upload(harness)

    def refuse(_: Sequence[str]) -> None:
        raise UpstreamRejected("no")

    harness.calls.before_embedding = refuse
    assert await harness.deliver(harness.part(upload, 0))
    assert (await harness.only_upload()).errors[0].code == "upstream_rejected"


async def test_messages_of_missing_parts_are_dropped(harness: IngestHarness) -> None:
    assert await harness.deliver(harness.part(UploadId("upl_01k9s3f5k2abcdefghjkmnpqrs"), 0))
    upload = await plan_upload(harness)
    for number in (PARTS, -1):
        assert await harness.deliver(harness.part(upload, number))
    assert (await harness.only_upload()).status == "running"


async def test_a_document_deleted_during_the_ingest_stays_deleted(harness: IngestHarness) -> None:
    upload = await plan_upload(harness)
    await harness.deliver(harness.part(upload, 0))
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0000"))
    assert await harness.deliver(harness.part(upload, 0))
    await harness.deliver_all()
    assert "d0000" not in await harness.texts()


async def test_a_released_lease_cannot_be_renewed(harness: IngestHarness) -> None:
    """A late renewal must not lease the part a second time after the worker has released it."""
    record = await read_record(harness.store, INDEX, await plan_upload(harness))
    first, second = (MessageLease(message, harness.settings) for message in ("first", "second"))
    key = (await lease_part(harness.store, record, 0, first)).key
    await first.renew(harness.store, key)
    await first.release(harness.store, key)
    with pytest.raises(ConditionFailed):
        await first.renew(harness.store, key)
    assert (await lease_part(harness.store, record, 0, second)).owner == second.owner


async def test_a_failed_upload_counts_in_the_limit_of_queued_parts_for_at_most_a_day(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = await read_record(harness.store, INDEX, await plan_upload(harness))
    await end_failed(harness.store, stale, ABANDONED, is_temporary=False)
    await publish_parts(harness.store, stale)
    harness.receive()
    tomorrow = now_s() + 24 * 3600
    for room in ("store.table", "rag.ingest.parts"):
        monkeypatch.setattr(f"spass.{room}.now_s", lambda: tomorrow)
    await plan_upload(harness, "other/a.jsonl")
    assert len(harness.receive()) == MAX_QUEUED_PARTS


async def test_a_late_message_does_not_restart_an_upload_that_failed_again(harness: IngestHarness) -> None:
    upload = await plan_upload(harness)
    harness.receive()
    harness.calls.before_embedding = fail
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    first_failure = await read_record(harness.store, INDEX, upload)
    restarted = await restart(harness.store, first_failure)
    assert len(harness.receive()) == MAX_QUEUED_PARTS
    assert await restart(harness.store, first_failure) == restarted
    assert harness.receive() == []
    await end_failed(harness.store, restarted, ABANDONED, is_temporary=True, part=5)
    with pytest.raises(LeaseLost):
        await restart(harness.store, first_failure)
    assert (await harness.only_upload()).status == "failed"


async def test_a_worker_stops_if_its_part_moved_to_another_position(harness: IngestHarness) -> None:
    """A transaction that timed out may take effect later, after the worker has formed other batches."""
    harness.change_settings(lease_seconds=-1)
    upload = await plan_upload(harness)
    size = len(lines(("d0000", "text 0")))
    progress: dict[str, Value] = {"batch": 1, "position": encode(Position(offset=size, line=2, number=2))}
    pending = [Update(keys.upload_part(harness.tenant, INDEX, upload, 0), set=progress)]

    class LateTransaction(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            if pending:
                await harness.store.table.write(pending.pop())
            return await Calls.embed(self, scope, texts)

    harness.calls = LateTransaction()
    assert not await harness.deliver(harness.part(upload, 0), message="m")
    with pytest.raises(IndexNotFound):
        await harness.texts()
    assert await harness.deliver(harness.part(upload, 0), message="m", receives=2)
    assert await harness.texts() == {"d0001": "text 1"}
