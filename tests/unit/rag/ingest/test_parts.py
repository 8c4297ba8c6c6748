"""A large file has one message for each part. Messages may arrive in any order, twice, late or never."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spass.aws import keys
from spass.aws.attributes import Value
from spass.aws.codec import encode
from spass.aws.leases import LeaseLost
from spass.aws.table import ConditionFailed
from spass.aws.writes import Update
from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, UpstreamError, UpstreamRejected
from spass.core.ids import DocumentId, IndexId, TenantId, UploadId
from spass.core.jobs import IngestUpload, body_of
from spass.core.time import Deadline, now_s
from spass.llm.types import EmbeddingReply
from spass.rag.ingest.lease import Receiver
from spass.rag.ingest.parts import lease_part
from spass.rag.ingest.plan import Position
from spass.rag.ingest.publish import PARTS_AT_ONCE, publish_parts
from spass.rag.ingest.sweep import SweptUploads, sweep_uploads
from spass.rag.ingest.transitions import end_failed, restart
from spass.rag.ingest.upload_record import ABANDONED, read_record
from spass.testing.faults import Crash
from tests.unit.rag.ingest.harness import INDEX, Calls, IngestHarness, file_of, lines, numbered

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
DOCUMENTS = numbered(40)  # in twenty parts
PARTS = 20
SIZE = len(file_of(DOCUMENTS))


@pytest.fixture(autouse=True)
def parts_of_two_lines(harness: IngestHarness) -> None:
    size = 2 * len(lines(("d0000", "text 0")))
    harness.change_settings(small_bytes=size, part_bytes=size)


async def planned(harness: IngestHarness, path: str = PATH) -> UploadId:
    assert await harness.deliver(harness.put(path, file_of(DOCUMENTS)))
    return (await harness.only_upload(IndexId(path.partition("/")[0]))).id


def fail(_: Sequence[str]) -> None:
    raise UpstreamError("down")


async def test_each_part_is_a_message_and_the_last_one_ends_the_upload(harness: IngestHarness) -> None:
    await planned(harness)
    upload = await harness.only_upload()
    assert (upload.status, upload.bytes_total, upload.documents_ingested) == ("running", SIZE, 0)
    assert [job.part for job in await harness.deliver_all()] == list(range(PARTS))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.bytes_done) == ("succeeded", 40, SIZE)
    assert await harness.texts() == DOCUMENTS


async def test_a_small_file_is_ingested_by_the_worker_that_planned_it(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(PATH, file_of(numbered(2))))
    assert harness.receive() == []
    assert (await harness.only_upload()).status == "succeeded"


async def test_a_file_has_a_bounded_number_of_parts_on_the_queue(harness: IngestHarness) -> None:
    await planned(harness)
    waiting = harness.receive()
    assert len(waiting) == PARTS_AT_ONCE
    while waiting:
        assert await harness.deliver(waiting.pop())
        waiting += harness.receive()
        assert len(waiting) <= PARTS_AT_ONCE
    assert (await harness.only_upload()).status == "succeeded"


async def test_large_files_of_a_tenant_share_its_window(harness: IngestHarness) -> None:
    """A second file gets half of the window, and all of it after the first has ended."""
    await planned(harness)
    await planned(harness, "other/a.jsonl")
    waiting: dict[str, list[str]] = {"a": [], "b": []}

    def collect() -> None:
        for body in harness.receive():
            waiting["a" if f'"{INDEX}"' in body else "b"].append(body)

    collect()
    assert [len(bodies) for bodies in waiting.values()] == [PARTS_AT_ONCE, PARTS_AT_ONCE // 2]
    for _ in range(6):
        for bodies in waiting.values():
            assert await harness.deliver(bodies.pop(0))
        collect()
    assert [len(bodies) for bodies in waiting.values()] == [PARTS_AT_ONCE // 2] * 2
    while waiting["a"]:
        assert await harness.deliver(waiting["a"].pop(0))
        collect()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.deliver(waiting["b"].pop(0))
    collect()
    assert len(waiting["b"]) == PARTS_AT_ONCE


async def test_each_of_many_large_files_has_a_part_on_the_queue(harness: IngestHarness) -> None:
    for number in range(PARTS_AT_ONCE + 4):
        await planned(harness, f"i{number}/a.jsonl")
        sent = len(harness.receive())
        assert sent == max(1, PARTS_AT_ONCE // (number + 1))


async def test_a_small_file_waits_only_for_the_window_of_another_tenant(harness: IngestHarness) -> None:
    """Deliver the messages in order: the small file is done while most parts of the large one wait."""
    other = replace(harness, tenant=TenantId("other"))
    await planned(harness)
    waiting = [*harness.receive(), other.put(PATH, file_of(numbered(1)))]
    before = 0
    while (await other.uploads.list(other.scope, INDEX)).uploads == ():
        body = waiting.pop(0)
        await (other if other.tenant in body else harness).deliver(body)
        waiting += harness.receive()
        before += 1
    assert before == PARTS_AT_ONCE + 1
    assert (await other.only_upload()).status == "succeeded"
    assert (await harness.only_upload()).documents_ingested == 2 * PARTS_AT_ONCE


async def test_duplicate_messages_change_and_send_nothing(harness: IngestHarness) -> None:
    event = harness.put(PATH, file_of(DOCUMENTS))
    assert await harness.deliver(event)
    assert await harness.deliver(event)
    waiting = harness.receive()
    assert len(waiting) == PARTS_AT_ONCE
    while waiting:
        body = waiting.pop(0)
        for _ in range(3):
            assert await harness.deliver(body)
        waiting += harness.receive()
        assert len(waiting) <= PARTS_AT_ONCE
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())
    for body in (event, harness.part((await harness.only_upload()).id, 3)):
        assert await harness.deliver(body)
    assert harness.receive() == []


async def test_a_duplicate_is_dropped_while_a_part_is_leased(harness: IngestHarness) -> None:
    upload = await planned(harness)
    body = harness.part(upload, 0)

    class Duplicated(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            other = harness.rival()
            assert await other.deliver(body, message="another")
            assert not await other.deliver(body, message="m", receives=2)
            assert other.calls.texts == []
            return await Calls.embed(self, scope, texts)

    harness.calls = Duplicated()
    assert await harness.deliver(body, message="m")
    assert (await harness.only_upload()).documents_ingested == 2


async def test_the_part_of_a_dead_worker_continues_at_its_position(harness: IngestHarness) -> None:
    harness.change_settings(batch_documents=1, lease_seconds=-1)
    upload = await planned(harness)

    def die(texts: Sequence[str]) -> None:
        if "text 1" in texts:
            raise Crash

    harness.calls.before = die
    with pytest.raises(Crash):
        await harness.deliver(harness.part(upload, 0), message="m")
    harness.calls.before = lambda _: None
    assert await harness.deliver(harness.part(upload, 0), message="m", receives=2)
    assert harness.calls.texts == ["text 0", "text 1"]


async def test_no_part_is_skipped_if_a_worker_dies_before_it_sends_the_next(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await planned(harness)
    waiting = harness.receive()

    async def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.worker.publish_parts", die)
        for body in waiting:
            with pytest.raises(Crash):
                await harness.deliver(body)
    assert harness.receive() == []
    for body in waiting:
        assert await harness.deliver(body)
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())


async def test_an_abandoned_upload_without_queued_parts_can_continue(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await planned(harness)

    async def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.worker.publish_parts", die)
        for body in harness.receive():
            with pytest.raises(Crash):
                await harness.deliver(body)
    swept = await sweep_uploads(harness.store, now_s() + 25 * 3600, Deadline.after(10))
    assert swept == SweptUploads(abandoned=1)
    assert await harness.deliver(body_of(IngestUpload(harness.tenant, INDEX, upload)))
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == DOCUMENTS


async def test_a_worker_whose_time_is_up_sends_its_part_to_the_end_of_the_queue(harness: IngestHarness) -> None:
    harness.change_settings(batch_documents=1)
    upload = await planned(harness)
    harness.receive()
    assert await harness.deliver(harness.part(upload, 5), seconds=60)
    assert harness.receive_parts() == [5]
    assert (await harness.only_upload()).status == "running"
    assert await harness.deliver(harness.part(upload, 5), seconds=60)
    assert harness.receive_parts() == [PARTS_AT_ONCE]


async def test_a_permanent_error_ends_all_parts(harness: IngestHarness) -> None:
    await planned(harness)
    first, *rest = harness.receive()
    assert await harness.deliver(first)
    await harness.rag.deleter.delete_index(harness.scope, INDEX)
    for body in rest:
        assert await harness.deliver(body)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.errors[0].code) == ("failed", 2, "index_replaced")


async def test_the_last_failure_of_a_part_fails_the_upload(harness: IngestHarness) -> None:
    upload = await planned(harness)
    waiting = harness.receive()
    assert await harness.deliver(waiting.pop())
    waiting += harness.receive()
    harness.calls.before = fail
    for receives in range(1, 5):
        assert not await harness.deliver(harness.part(upload, 1), receives=receives)
        assert (await harness.only_upload()).status == "running"
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    failed = await harness.only_upload()
    assert (failed.status, failed.documents_ingested) == ("failed", 2)
    assert [(error.line, error.code) for error in failed.errors] == [(None, "upstream_error")]
    for body in waiting:
        if body != harness.part(upload, 1):
            assert await harness.deliver(body), "messages of other parts are dropped"
    assert (await harness.only_upload()).status == "failed"


@pytest.mark.parametrize("how", ["dead letter", "event", "operator"])
async def test_a_failed_upload_continues_when_it_is_sent_again(harness: IngestHarness, how: str) -> None:
    event = harness.put(PATH, file_of(DOCUMENTS))
    assert await harness.deliver(event)
    upload = (await harness.only_upload()).id
    others = [body for body in harness.receive() if body != harness.part(upload, 1)]
    harness.calls.before = fail
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    for body in others:
        assert await harness.deliver(body)
    harness.calls.before = lambda _: None
    by_hand = f'{{"job": "ingest", "tenant": "{harness.tenant}", "index": "{INDEX}", "upload": "{upload}"}}'
    assert await harness.deliver({"dead letter": harness.part(upload, 1), "event": event, "operator": by_hand}[how])
    assert (await harness.only_upload()).status == "running"
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == DOCUMENTS
    assert sorted(harness.calls.texts) == sorted(DOCUMENTS.values())


async def test_an_upload_fails_if_the_model_refuses_too_many_documents(harness: IngestHarness) -> None:
    harness.change_settings(max_refused=1)
    upload = await planned(harness)

    def refuse(_: Sequence[str]) -> None:
        raise UpstreamRejected("no")

    harness.calls.before = refuse
    assert await harness.deliver(harness.part(upload, 0))
    assert (await harness.only_upload()).errors[0].code == "upstream_rejected"


async def test_messages_of_missing_parts_are_dropped(harness: IngestHarness) -> None:
    assert await harness.deliver(harness.part(UploadId("upl_01k9s3f5k2abcdefghjkmnpqrs"), 0))
    upload = await planned(harness)
    for number in (PARTS, -1):
        assert await harness.deliver(harness.part(upload, number))
    assert (await harness.only_upload()).status == "running"


async def test_a_document_deleted_during_the_ingest_stays_deleted(harness: IngestHarness) -> None:
    upload = await planned(harness)
    await harness.deliver(harness.part(upload, 0))
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0000"))
    assert await harness.deliver(harness.part(upload, 0))
    await harness.deliver_all()
    assert "d0000" not in await harness.texts()


async def test_a_released_lease_cannot_be_renewed(harness: IngestHarness) -> None:
    """A renewal may come between the release of a part and the message that continues it."""
    record = await read_record(harness.store, INDEX, await planned(harness))
    first, second = (Receiver(message, harness.settings) for message in ("first", "second"))
    key = (await lease_part(harness.store, record, 0, first)).key
    await first.renew(harness.store, key)
    await first.release(harness.store, key)
    with pytest.raises(ConditionFailed):
        await first.renew(harness.store, key)
    assert (await lease_part(harness.store, record, 0, second)).owner == second.owner


async def test_an_ended_upload_takes_a_share_of_the_window_for_a_day_at_most(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = await read_record(harness.store, INDEX, await planned(harness))
    await end_failed(harness.store, stale, ABANDONED, may_pass=False)
    await publish_parts(harness.store, stale)
    harness.receive()
    tomorrow = now_s() + 24 * 3600
    for room in ("aws.table", "rag.ingest.publish"):
        monkeypatch.setattr(f"spass.{room}.now_s", lambda: tomorrow)
    await planned(harness, "other/a.jsonl")
    assert len(harness.receive()) == PARTS_AT_ONCE


async def test_a_late_message_does_not_undo_a_later_stop(harness: IngestHarness) -> None:
    upload = await planned(harness)
    harness.receive()
    harness.calls.before = fail
    assert not await harness.deliver(harness.part(upload, 1), receives=5)
    first_stop = await read_record(harness.store, INDEX, upload)
    restarted = await restart(harness.store, first_stop)
    assert len(harness.receive()) == PARTS_AT_ONCE
    assert await restart(harness.store, first_stop) == restarted
    assert harness.receive() == []
    await end_failed(harness.store, restarted, ABANDONED, may_pass=True, part=5)
    with pytest.raises(LeaseLost):
        await restart(harness.store, first_stop)
    assert (await harness.only_upload()).status == "failed"


async def test_a_worker_stops_if_its_part_moved_to_another_position(harness: IngestHarness) -> None:
    """A transaction that timed out may take effect late, when the worker has split the batch in another way."""
    harness.change_settings(lease_seconds=-1)
    upload = await planned(harness)
    size = len(lines(("d0000", "text 0")))
    late: dict[str, Value] = {"batch": 1, "position": encode(Position(size, 2, 2))}
    pending = [Update(keys.upload_part(harness.tenant, INDEX, upload, 0), set=late)]

    class Late(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            if pending:
                await harness.store.table.write(pending.pop())
            return await Calls.embed(self, scope, texts)

    harness.calls = Late()
    assert not await harness.deliver(harness.part(upload, 0), message="m")
    with pytest.raises(IndexNotFound):
        await harness.texts()
    assert await harness.deliver(harness.part(upload, 0), message="m", receives=2)
    assert await harness.texts() == {"d0001": "text 1"}
