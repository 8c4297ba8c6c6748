"""Workers ingest each document of a file once, in spite of repeated messages, errors and dead workers."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import pytest

from spass.aws.bucket import S3Uploads
from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, RateLimited, TooManyDocuments, UpstreamError, UpstreamRejected, UpstreamTimeout
from spass.core.ids import DocumentId, IndexId
from spass.core.jobs import Delivery
from spass.core.time import Deadline, now_s
from spass.models.types import EmbeddingReply
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.ingest.harness import INDEX, Calls, IngestHarness, config_with, jsonl_file, lines, numbered_texts, put_event

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"


class Failing:
    """Fail the embedding calls numbered_texts ``at`` (from 0), and all calls with a text of ``texts``."""

    def __init__(self, error: Exception, *at: int, texts: Sequence[str] = ()) -> None:
        self.error, self.at, self.texts, self.calls = error, at, texts, 0

    def __call__(self, texts: Sequence[str]) -> None:
        self.calls += 1
        if self.calls - 1 in self.at or set(self.texts) & set(texts):
            raise self.error


async def test_an_event_delivered_three_times_is_ingested_once(harness: IngestHarness) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(3)))
    for _ in range(3):
        assert await harness.deliver(event)
    assert await harness.texts() == numbered_texts(3)
    assert harness.calls.texts == list(numbered_texts(3).values())
    assert (await describe_index(harness.scope, INDEX)).version == 1
    assert (await harness.only_upload()).documents_ingested == 3


async def test_a_late_duplicate_does_not_undo_a_users_changes(harness: IngestHarness) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(3)))
    await harness.deliver(event)
    await harness.rag.writer.patch(harness.scope, INDEX, DocumentId("d0000"), DocumentPatch(text="changed"))
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0001"))
    assert await harness.deliver(event)
    assert await harness.texts() == {"d0000": "changed", "d0002": "text 2"}


async def test_the_same_file_put_again_is_ingested_again(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))))
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0001"))
    await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))))
    assert await harness.texts() == numbered_texts(2)
    assert len((await harness.uploads.list(harness.scope, INDEX)).uploads) == 2


async def test_the_later_of_two_lines_with_one_id_wins(harness: IngestHarness) -> None:
    body = lines(("a", "old"), ("b", "b"), ("a", "new"), ("c", "c"), ("a", "newest"))
    await harness.deliver(harness.put(PATH, body))
    assert await harness.texts() == {"a": "newest", "b": "b", "c": "c"}
    assert (await harness.only_upload()).documents_ingested == 5


async def test_an_invalid_line_is_reported_with_its_number(harness: IngestHarness) -> None:
    body = lines(("a", "a"), "no json", ("b", "b"), '{"id": "c"}', "", ("d", "d"))
    await harness.deliver(harness.put(PATH, body))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("succeeded", 3, 2)
    assert [error.line for error in upload.errors] == [2, 4]
    assert all(error.code and error.message for error in upload.errors)
    assert await harness.texts() == {"a": "a", "b": "b", "d": "d"}


async def test_a_hundred_errors_are_stored_and_all_are_counted(harness: IngestHarness) -> None:
    body = lines(*(line for n in range(150) for line in ("no json", (f"d{n}", "text"))))
    await harness.deliver(harness.put(PATH, body))
    upload = await harness.only_upload()
    assert (upload.documents_ingested, upload.documents_failed) == (150, 150)
    assert [error.line for error in upload.errors] == list(range(1, 200, 2))


async def test_a_file_with_only_invalid_lines_fails(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(PATH, lines("no json", "neither")))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("failed", 0, 2)
    assert upload.bytes_done == upload.bytes_total
    with pytest.raises(IndexNotFound):
        await harness.texts()


async def test_text_is_split_into_documents_with_the_filename_in_their_ids(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(f"{INDEX}/guide.md", b"# One\n\nFirst.\n\n# Two\n\nSecond.\n"))
    texts = await harness.texts()
    assert texts
    assert set(texts) == {f"guide.md#{n + 1}" for n in range(len(texts))}
    document = await harness.rag.reader.document(harness.scope, INDEX, DocumentId("guide.md#1"))
    assert document.metadata["source"] == "guide.md"


async def test_rows_of_a_csv_become_documents(harness: IngestHarness) -> None:
    await harness.deliver(harness.put(f"{INDEX}/a.csv", b"id,text,year\na,Eins,2001\nb,Zwei,2002\n"))
    assert await harness.texts() == {"a": "Eins", "b": "Zwei"}
    assert (await harness.rag.reader.document(harness.scope, INDEX, DocumentId("b"))).metadata["year"] == "2002"


async def test_progress_grows_with_each_batch_up_to_the_files_size(harness: IngestHarness, documents_per_batch: int) -> None:
    body = jsonl_file(numbered_texts(10))
    progress: list[tuple[int, int]] = []

    async def read_progress(_: Sequence[str]) -> None:
        upload = await harness.only_upload()
        assert upload.status == "running"
        progress.append((upload.bytes_done, upload.documents_ingested))

    embed = harness.calls.embed

    class ReadingProgress(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            await read_progress(texts)
            return await embed(scope, texts)

    harness.calls = ReadingProgress()
    await harness.deliver(harness.put(PATH, body))
    line = len(lines(("d0000", "text 0")))
    assert progress == [(0, 0), (4 * line, 4), (8 * line, 8)]
    upload = await harness.only_upload()
    assert (upload.bytes_done, upload.bytes_total) == (len(body), len(body))


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("a.exe", b"MZ", "unsupported_file_type"),
        ("a", b"text", "unsupported_file_type"),
        ("folder/", b"text", "unsupported_file_type"),
        ("a.jsonl", b"", "empty_file"),
        ("a.md", b"", "empty_file"),
        ("a.md", b"caf\xe9", ""),
        ("a.csv", b"id,name\n1,x\n", ""),
        ("a.csv", b'id,text\n1,"open\n', ""),
    ],
)
async def test_a_refused_file_has_an_error_and_stores_nothing(harness: IngestHarness, path: str, body: bytes, code: str) -> None:
    event = harness.put(f"{INDEX}/{path}", body)
    for _ in range(2):
        assert await harness.deliver(event), "the message is done"
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("failed", 0)
    assert upload.errors[0].code == code or not code
    assert upload.errors[0].code
    with pytest.raises(IndexNotFound):
        await harness.texts()


@pytest.mark.parametrize("path", [f"{INDEX}/", f"{INDEX}/2026/", ""])
async def test_a_folder_of_the_console_is_ignored(harness: IngestHarness, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with inject(FaultPlan()) as plan:
        assert await harness.deliver(harness.put(path, b""))
    assert plan.calls == []
    assert capsys.readouterr().out == ""
    assert not (await harness.uploads.list(harness.scope, INDEX)).uploads


async def test_other_lines_are_ingested_if_one_line_is_too_long(harness: IngestHarness) -> None:
    body = lines(("a", "a"), ("b", "x" * 3_000_000), ("c", "c"))
    await harness.deliver(harness.put(PATH, body))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, [error.line for error in upload.errors]) == ("succeeded", 2, [2])


async def test_a_file_that_is_too_large_is_not_read(harness: IngestHarness) -> None:
    harness.change_settings(max_file_bytes=10)
    with inject(FaultPlan()) as plan:
        assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(1))))
    assert (await harness.only_upload()).errors[0].code == "file_too_large"
    assert "GetObject" not in [call.operation for call in plan.calls]


async def test_a_missing_file_fails_the_upload(harness: IngestHarness) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(1)))
    version = json.loads(event)["Records"][0]["s3"]["object"]["versionId"]
    await harness.store.uploads.delete(PATH, version)
    assert await harness.deliver(event)
    upload = await harness.only_upload()
    assert (upload.status, upload.errors[0].code, upload.errors[0].line) == ("failed", "object_missing", None)


@pytest.mark.parametrize("path", ["uploads/t/a.jsonl", "uploads/t/-x/a.jsonl", "uploads/unknown/books/a.jsonl", "elsewhere"])
async def test_a_key_without_a_known_tenant_and_index_is_only_logged(
    harness: IngestHarness, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with inject(FaultPlan()) as plan:
        assert await harness.deliver(put_event(path.replace("/t/", f"/{harness.tenant}/"), "v"), message="m-1")
    assert plan.calls == []
    output = capsys.readouterr().out
    line = json.loads(output)
    assert (line["event"], line["message_id"]) == ("job_dropped", "m-1")
    assert "jsonl" not in output


async def test_valid_events_of_a_message_with_an_invalid_event_are_handled(harness: IngestHarness) -> None:
    events = [
        json.loads(event)["Records"][0] for event in (put_event("x", "v"), harness.put(PATH, jsonl_file(numbered_texts(2))))
    ]
    assert await harness.deliver(json.dumps({"Records": [17, *events]}))
    assert await harness.texts() == numbered_texts(2)


async def test_the_next_event_is_handled_if_one_raises_an_unexpected_error(harness: IngestHarness) -> None:
    events = [json.loads(harness.put(f"{INDEX}/{name}.txt", name.encode()))["Records"][0] for name in ("bad", "good")]
    harness.calls.before_embedding = Failing(ZeroDivisionError(), texts=["bad"])
    with pytest.raises(ZeroDivisionError):
        await harness.deliver(json.dumps({"Records": events}))
    assert list((await harness.texts()).values()) == ["good"]


async def test_nothing_is_embedded_twice_after_temporary_errors(harness: IngestHarness, documents_per_batch: int) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    harness.calls.before_embedding = Failing(UpstreamError("down"), 1, 2)
    assert not await harness.deliver(event, message="m", receives=1)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.errors) == ("queued", 4, ())
    assert not await harness.deliver(event, message="m", receives=2)
    assert await harness.deliver(event, message="m", receives=3)
    assert (await harness.only_upload()).documents_ingested == 10
    assert harness.calls.texts == list(numbered_texts(10).values())


async def test_a_worker_with_enough_time_retries_after_temporary_errors(harness: IngestHarness, documents_per_batch: int) -> None:
    harness.change_settings(retry_pause_seconds=(0.0, 0.0))
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    harness.calls.before_embedding = Failing(UpstreamError("down"), 1, 3)
    assert await harness.deliver(event)
    assert (await harness.only_upload()).status == "succeeded"
    assert harness.calls.texts == list(numbered_texts(10).values())


async def test_a_worker_without_enough_time_does_not_retry(harness: IngestHarness, documents_per_batch: int) -> None:
    harness.change_settings(retry_pause_seconds=(60.0,))
    harness.calls.before_embedding = Failing(UpstreamError("down"), 0)
    assert not await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))), seconds=100)
    assert (await harness.only_upload()).status == "queued"


@pytest.mark.parametrize("error", [UpstreamError("down"), UpstreamTimeout("late"), RateLimited("slow")])
async def test_the_last_delivery_fails_the_upload_and_a_redrive_continues_it(
    harness: IngestHarness, documents_per_batch: int, error: UpstreamError
) -> None:
    event = harness.put(PATH, lines("bad", *numbered_texts(10).items()))
    harness.calls.before_embedding = Failing(error, 1)
    assert not await harness.deliver(event, message="m", receives=5)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("failed", 4)
    assert [(shown.line, shown.code) for shown in upload.errors] == [(None, error.code), (1, upload.errors[1].code)]
    assert await harness.deliver(event, message="m", receives=1)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, len(upload.errors)) == ("succeeded", 10, 1)
    assert await harness.texts() == numbered_texts(10)


async def test_an_index_of_another_model_fails_the_upload(harness: IngestHarness) -> None:
    await harness.rag.writer.append(harness.scope, INDEX, [NewDocument(id="a", text="a")])
    harness.calls = Calls(config_with("another"))
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))))
    upload = await harness.only_upload()
    assert (upload.status, upload.errors[0].code) == ("failed", "embedding_model_mismatch")


async def test_only_the_documents_that_the_model_refuses_fail(harness: IngestHarness) -> None:
    body = lines(*numbered_texts(7).items(), "bad", ("worse", "bad taste"), *((f"z{n}", "fine") for n in range(3)))
    harness.calls.before_embedding = Failing(UpstreamRejected("no"), texts=["bad taste", "text 2"])
    assert await harness.deliver(harness.put(PATH, body))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("succeeded", 9, 3)
    assert [(error.line, error.code) for error in upload.errors][::2] == [(3, "upstream_rejected"), (9, "upstream_rejected")]
    assert set(await harness.texts()) == {f"d000{n}" for n in (0, 1, 3, 4, 5, 6)} | {"z0", "z1", "z2"}


async def test_a_model_that_refuses_everything_fails_the_upload(harness: IngestHarness) -> None:
    harness.calls.before_embedding = Failing(UpstreamRejected("no"), *range(10_000))
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(200))))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.errors[0].code) == ("failed", 0, "upstream_rejected")
    assert upload.errors[0].line is None
    assert isinstance(harness.calls.before_embedding, Failing)
    assert harness.calls.before_embedding.calls < 100


async def test_a_full_index_fails_the_upload_and_embeds_nothing_twice(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise TooManyDocuments("The index is full; use another one beside it.")

    monkeypatch.setattr("spass.rag.write.writer.choose_merge", full)
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(200))))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_failed) == ("failed", 0)
    assert [(error.line, error.code) for error in upload.errors] == [(None, "too_many_documents")]
    assert harness.calls.texts == list(numbered_texts(200).values())


@pytest.mark.parametrize("then", ["deleted", "replaced"])
async def test_deleting_or_replacing_the_index_fails_the_upload(
    harness: IngestHarness, documents_per_batch: int, then: str
) -> None:
    harness.calls.before_embedding = Failing(UpstreamError("down"), 1)
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    assert not await harness.deliver(event)
    if then == "deleted":
        assert await harness.rag.deleter.delete_index(harness.scope, INDEX)
    else:
        await harness.rag.writer.replace(harness.scope, INDEX, [NewDocument(id="only", text="only")])
    assert await harness.deliver(event, receives=2)
    upload = await harness.only_upload()
    assert (upload.status, upload.errors[0].code) == ("failed", "index_replaced")
    assert await harness.deliver(event, receives=3), "it has ended"
    if then == "deleted":
        with pytest.raises(IndexNotFound):
            await harness.texts()
    else:
        assert await harness.texts() == {"only": "only"}


async def test_an_index_deleted_before_the_file_arrives_is_created_again(harness: IngestHarness) -> None:
    await harness.rag.writer.append(harness.scope, INDEX, [NewDocument(id="old", text="old")])
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    await harness.rag.deleter.delete_index(harness.scope, INDEX)
    await harness.deliver(harness.put(f"{INDEX}/{ticket.upload_id}/a.jsonl", jsonl_file(numbered_texts(2))))
    assert await harness.texts() == numbered_texts(2)


async def test_a_worker_without_time_stores_one_batch_and_sends_the_rest(
    harness: IngestHarness, documents_per_batch: int
) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    assert await harness.deliver(event, seconds=60)
    for done in (4, 8):
        assert (await harness.only_upload()).documents_ingested == done
        assert (await harness.only_upload()).status == "queued"
        (continuation,) = harness.receive()
        assert await harness.deliver(continuation, seconds=60)
    assert harness.receive() == []
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(10)
    assert await harness.deliver(event)
    assert harness.calls.texts == list(numbered_texts(10).values())


class Clock(Deadline):
    """A deadline in ``left`` seconds. Tests set ``left``."""

    left: ClassVar[float]

    def remaining(self) -> float:
        return Clock.left


@pytest.mark.parametrize(("left", "seconds", "after"), [(210.0, 110, (100, 4)), (800.0, 100, (600, 8))])
async def test_no_batch_begins_without_enough_time_or_after_the_time_slice(
    harness: IngestHarness, documents_per_batch: int, left: float, seconds: int, after: tuple[float, int]
) -> None:
    """An interrupted batch would be embedded twice. After the time slice, other files get their turn."""
    Clock.left = left

    def take_long(_: Sequence[str]) -> None:
        Clock.left -= seconds

    harness.calls.before_embedding = take_long
    assert await harness.dispatcher.message(harness.put(PATH, jsonl_file(numbered_texts(20))), Delivery("m", 1), Clock(0))
    assert (Clock.left, (await harness.only_upload()).documents_ingested) == after
    assert harness.receive_parts() == [0]


@pytest.mark.parametrize(("left", "ends"), [(870.0, True), (300.0, False)])
async def test_a_survey_that_had_enough_time_is_not_retried(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, left: float, ends: bool
) -> None:
    """Retries of a survey that had a quarter of an hour would fail in the same way."""
    Clock.left = left
    blocks = S3Uploads.blocks

    async def slow(*arguments: Any) -> AsyncIterator[bytes]:
        async for block in blocks(*arguments):
            yield block
            Clock.left = 0.0
            yield b""

    monkeypatch.setattr(S3Uploads, "blocks", slow)
    assert await harness.dispatcher.message(harness.put(PATH, jsonl_file(numbered_texts(3))), Delivery("m", 1), Clock(0)) is ends
    upload = await harness.only_upload()
    expected = ("failed", ["survey_timeout"]) if ends else ("queued", [])
    assert (upload.status, [error.code for error in upload.errors]) == expected
    assert harness.calls.texts == []


async def test_a_redelivery_continues_when_the_lease_of_a_dead_worker_expires(
    harness: IngestHarness, documents_per_batch: int
) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))

    def die(_: object) -> None:
        raise Crash

    harness.calls.before_embedding = lambda texts: die(texts) if "text 4" in texts else None
    with pytest.raises(Crash):
        await harness.deliver(event, message="first")
    assert await harness.deliver(event, message="second"), (
        "a duplicate is dropped, because the queue delivers the first message again"
    )
    assert not await harness.deliver(event, message="first", receives=2), "the lease has not expired"
    assert not await harness.deliver(event, message="first", receives=5), "the upload of a live worker does not fail"
    assert (await harness.only_upload()).status == "running"
    harness.calls.before_embedding = lambda _: None
    later = now_s() + 61
    harness.change_settings(clock=lambda: later)
    assert await harness.deliver(event, message="first", receives=3)
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(10)
    assert harness.calls.texts == list(numbered_texts(10).values())


async def test_a_worker_that_lost_its_lease_changes_nothing(harness: IngestHarness, documents_per_batch: int) -> None:
    """While the first worker embeds, its lease expires and another worker ingests the file."""
    event = harness.put(PATH, jsonl_file(numbered_texts(6)))
    embed = Calls.embed
    rival = Calls()
    seconds = [now_s()]
    harness.change_settings(clock=lambda: seconds[0])

    class Slow(Calls):
        async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
            if not rival.texts:
                seconds[0] += 61
                other = harness.rival(rival)
                assert await other.deliver(event, message="m")
                await other.rag.writer.patch(other.scope, INDEX, DocumentId("d0000"), DocumentPatch(text="by hand"))
            return await embed(self, scope, texts)

    harness.calls = Slow()
    assert not await harness.deliver(event, message="m")
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("succeeded", 6)
    assert await harness.texts() == numbered_texts(6) | {"d0000": "by hand"}


async def test_a_merge_message_is_handled(harness: IngestHarness) -> None:
    body = json.dumps({"job": "merge", "tenant": harness.tenant, "index": INDEX})
    assert await harness.deliver(body)


async def test_a_message_of_a_missing_upload_is_dropped(harness: IngestHarness) -> None:
    body = {"job": "ingest", "tenant": harness.tenant, "index": INDEX, "upload": "upl_01k9s3f5k2abcdefghjkmnpqrs"}
    assert await harness.deliver(json.dumps(body))


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT])
async def test_a_message_is_redelivered_if_sending_the_next_one_fails(
    harness: IngestHarness, documents_per_batch: int, fault: Fault
) -> None:
    first = harness.put(PATH, jsonl_file(numbered_texts(6)))
    with inject(FaultPlan()) as plan:
        await harness.deliver(first, seconds=60)
    at = [call.operation for call in plan.calls].index("SendMessage")
    harness.receive()
    other = IndexId("other")
    event = harness.put(f"{other}/a.jsonl", jsonl_file(numbered_texts(6)))
    with inject(FaultPlan(fault, at=at, times=2)):
        assert not await harness.deliver(event, seconds=60)
    for body in (*harness.receive(), event):
        assert await harness.deliver(body)
    assert await harness.texts(other) == numbered_texts(6)
    assert (await harness.only_upload(other)).documents_ingested == 6


@pytest.mark.parametrize("fault", [Fault.REPEATED, Fault.LOST_REPLY, Fault.TIMEOUT])
async def test_a_batch_with_only_invalid_lines_counts_once(harness: IngestHarness, fault: Fault) -> None:
    body = b"no json\n" * 1500
    with inject(FaultPlan()) as plan:
        await harness.deliver(harness.put(PATH, body))
    first = [call.operation for call in plan.calls].index("TransactWriteItems")
    other = IndexId("other")
    event = harness.put(f"{other}/a.jsonl", body)
    with inject(FaultPlan(fault, at=first)):
        assert await harness.deliver(event)
    upload = await harness.only_upload(other)
    assert (upload.status, upload.documents_failed, upload.bytes_done) == ("failed", 1500, len(body))


@pytest.mark.parametrize("fault", [Fault.REPEATED, Fault.LOST_REPLY])
async def test_a_lost_reply_of_the_plan_needs_no_redelivery(harness: IngestHarness, fault: Fault) -> None:
    with inject(FaultPlan()) as plan:
        await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(2))))
    at = next(n for n, call in enumerate(plan.calls) if "parts" in getattr(call.parameters.get("write"), "set", ()))
    other = IndexId("other")
    with inject(FaultPlan(fault, at=at)):
        assert await harness.deliver(harness.put(f"{other}/a.jsonl", jsonl_file(numbered_texts(2))))
    assert (await harness.only_upload(other)).status == "succeeded"
    assert await harness.texts(other) == numbered_texts(2)
