"""If a file is put again under the same S3 key, the newest version wins, in any order of the events."""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from spass.core.errors import SpassError, UpstreamError
from spass.core.ids import IndexId, UploadId
from spass.core.time import now_s
from spass.rag.ingest.upload_record import KEEP_SECONDS, Status
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.ingest.harness import INDEX, IngestHarness, jsonl_file, lines, numbered_texts

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
T = TypeVar("T")


class InterruptPlan(FaultPlan):
    """A plan without faults that calls ``interrupt`` before the first AWS call of ``operation``."""

    def __init__(self, operation: str, interrupt: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self.operation, self.interrupts = operation, [interrupt]

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == self.operation and self.interrupts:
            await self.interrupts.pop()()
        return await super().around(call, run)


async def outcomes(harness: IngestHarness, index: IndexId = INDEX) -> list[tuple[str, list[str], int]]:
    """Return the status, the error codes and the number of ingested documents of each upload, sorted."""
    uploads = (await harness.uploads.list(harness.scope, index)).uploads
    return sorted((upload.status.value, [error.code for error in upload.errors], upload.documents_ingested) for upload in uploads)


def without_sequencer(event: str) -> str:
    message = json.loads(event)
    del message["Records"][0]["s3"]["object"]["sequencer"]
    return json.dumps(message)


async def test_a_late_event_of_an_older_version_changes_nothing(harness: IngestHarness) -> None:
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(3, text))) for text in ("old", "new"))
    assert await harness.deliver(newer)
    for _ in range(2):
        assert await harness.deliver(older), "the worker deletes the message"
    assert await harness.texts() == numbered_texts(3, "new")
    assert await outcomes(harness) == [("failed", ["superseded"], 0), ("succeeded", [], 3)]
    assert harness.calls.texts == list(numbered_texts(3, "new").values())


@pytest.mark.parametrize("form_was_used_by", [None, "older", "newer"])
async def test_a_superseded_upload_names_the_one_that_took_its_place(
    harness: IngestHarness, documents_per_batch: int, form_was_used_by: str | None
) -> None:
    path = PATH
    if form_was_used_by is not None:
        form = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 100000)
        path = f"{INDEX}/{form.upload_id}/a.jsonl"
    older, newer = (harness.put(path, jsonl_file(numbered_texts(10, text))) for text in ("old", "new"))
    if form_was_used_by == "older":
        assert await harness.deliver(older, seconds=60)
        (continuation,) = harness.receive()
        assert await harness.deliver(newer)
        assert await harness.deliver(continuation)
    else:
        assert await harness.deliver(newer)
        assert await harness.deliver(older)
    uploads = (await harness.uploads.list(harness.scope, INDEX)).uploads
    succeeded, superseded = sorted(uploads, key=lambda upload: upload.status is Status.FAILED)
    assert succeeded.status is Status.SUCCEEDED
    assert f"the upload {succeeded.id}, " in superseded.errors[0].message


async def test_a_newer_version_stops_the_ingest_of_an_older_one(harness: IngestHarness, documents_per_batch: int) -> None:
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(10, text))) for text in ("old", "new"))
    # 60 seconds are less than LAST_SECONDS: the worker stops after one batch.
    assert await harness.deliver(older, seconds=60)
    (continuation,) = harness.receive()
    assert (await harness.only_upload()).documents_ingested == documents_per_batch
    assert await harness.deliver(newer)
    assert await harness.deliver(continuation)
    assert await harness.texts() == numbered_texts(10, "new")
    assert await outcomes(harness) == [("failed", ["superseded"], documents_per_batch), ("succeeded", [], 10)]


@pytest.mark.parametrize(
    "body", [jsonl_file(numbered_texts(10, "old")), lines(*["no json"] * 2500)], ids=["documents", "only errors"]
)
async def test_a_batch_has_no_effect_if_a_newer_version_arrives_during_it(
    harness: IngestHarness, documents_per_batch: int, body: bytes
) -> None:
    """Ingest the newer version after the older one is embedded and before it is appended."""
    older, newer = harness.put(PATH, body), harness.put(PATH, jsonl_file(numbered_texts(10, "new")))
    rival = harness.rival()
    with inject(InterruptPlan("TransactWriteItems", lambda: rival.deliver(newer))):
        assert await harness.deliver(older)
    assert await harness.texts() == numbered_texts(10, "new")
    assert await outcomes(harness) == [("failed", ["superseded"], 0), ("succeeded", [], 10)]


@pytest.mark.parametrize("seed", range(12))
async def test_the_newest_version_wins_in_any_order_of_events(
    harness: IngestHarness, documents_per_batch: int, seed: int
) -> None:
    rng = random.Random(seed)
    texts = ["first", "second", "third"]
    events = [harness.put(PATH, jsonl_file(numbered_texts(rng.choice([3, 9]), text))) for text in texts]
    messages = [(event, f"event-{n}") for n, event in enumerate(events)] * 2
    newest = json.loads(events[-1])["Records"][0]["s3"]["object"]["versionId"]
    while messages:
        rng.shuffle(messages)
        body, message = messages.pop()
        await harness.deliver(body, message=message, seconds=rng.choice([1, 870]))
        messages += [(continuation, f"continuation-{rng.random()}") for continuation in harness.receive()]
    texts_by_id = await harness.texts()
    record = {item["version"]: item for item in await records(harness)}[newest]
    assert record["status"] == "succeeded"
    count = int(str(record["ingested"]))
    expected = numbered_texts(count, "third")
    assert {name: texts_by_id[name] for name in expected} == expected
    for status, codes, _ in await outcomes(harness):
        assert (status, codes) in (("succeeded", []), ("failed", ["superseded"]))


async def records(harness: IngestHarness) -> list[dict[str, object]]:
    items = await harness.store.table.query(keys.uploads_partition(harness.tenant, INDEX), prefix=keys.UPLOAD_PREFIX)
    return [dict(item) for item in items]


async def test_the_later_of_two_files_put_with_one_upload_form_is_ingested(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    path = f"{INDEX}/{ticket.upload_id}/a.jsonl"
    older, newer = (harness.put(path, jsonl_file(numbered_texts(2, text))) for text in ("old", "new"))
    assert await harness.deliver(newer)
    assert await harness.deliver(older)
    assert await harness.texts() == numbered_texts(2, "new")
    assert (await harness.uploads.get(harness.scope, INDEX, ticket.upload_id)).status == "succeeded"
    assert await outcomes(harness) == [("failed", ["superseded"], 0), ("succeeded", [], 2)]


async def test_files_with_other_keys_or_in_other_indices_are_not_superseded(harness: IngestHarness) -> None:
    paths = [PATH, f"{INDEX}/b.jsonl", "other/a.jsonl"]
    events = [harness.put(path, lines((path.replace("/", "-"), path))) for path in paths]
    for event in reversed(events):
        assert await harness.deliver(event)
    assert await outcomes(harness) == [("succeeded", [], 1)] * 2
    assert await outcomes(harness, IndexId("other")) == [("succeeded", [], 1)]


async def test_an_event_without_a_sequencer_is_ingested_when_it_arrives(harness: IngestHarness) -> None:
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(2, text))) for text in ("old", "new"))
    assert await harness.deliver(newer)
    assert await harness.deliver(without_sequencer(older))
    assert await harness.texts() == numbered_texts(2, "old")


async def test_a_restarted_upload_of_an_older_version_fails_as_superseded(harness: IngestHarness) -> None:
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(2, text))) for text in ("old", "new"))

    def fail(_: Sequence[str]) -> None:
        raise UpstreamError("down")

    harness.calls.before_embedding = fail
    assert not await harness.deliver(older, receives=5)
    upload = (await harness.only_upload()).id
    harness.calls.before_embedding = lambda _: None
    assert await harness.deliver(newer)
    assert await harness.deliver(ingest_message(harness, upload))
    assert await harness.texts() == numbered_texts(2, "new")
    assert await outcomes(harness) == [("failed", ["superseded"], 0), ("succeeded", [], 2)]


def ingest_message(harness: IngestHarness, upload: UploadId) -> str:
    """Return the message by which an operator continues an upload."""
    return json.dumps({"job": "ingest", "tenant": harness.tenant, "index": INDEX, "upload": upload})


@pytest.mark.parametrize("fault", list(Fault))
async def test_an_event_whose_worker_died_early_is_ingested_on_redelivery(harness: IngestHarness, fault: Fault) -> None:
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(2, text))) for text in ("old", "new"))
    with inject(FaultPlan(fault, at=0)), suppress(Crash, SpassError):
        await harness.deliver(newer, message="m")
    assert await harness.deliver(older)
    assert await harness.deliver(newer, message="m", receives=2)
    assert await harness.texts() == numbered_texts(2, "new")


async def test_the_newest_sequencer_of_a_key_expires_with_its_upload(harness: IngestHarness) -> None:
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(1))))
    (item,) = await harness.store.table.query(keys.uploads_partition(harness.tenant, INDEX), prefix="NEWEST#")
    assert abs(int(str(item["ttl"])) - now_s() - KEEP_SECONDS) < 60


async def test_parts_of_an_older_version_are_not_embedded(harness: IngestHarness) -> None:
    harness.change_settings(small_bytes=100, part_bytes=100)
    older, newer = (harness.put(PATH, jsonl_file(numbered_texts(9, text))) for text in ("old", "new"))
    assert await harness.deliver(older)
    first, *rest = harness.receive()
    assert await harness.deliver(first)
    rest += harness.receive()
    assert await harness.deliver(newer)
    text_count = len(harness.calls.texts)
    for body in rest:
        assert await harness.deliver(body)
    assert len(harness.calls.texts) == text_count
    await harness.deliver_all()
    assert await harness.texts() == numbered_texts(9, "new")
    assert [(status, codes) for status, codes, _ in await outcomes(harness)] == [("failed", ["superseded"]), ("succeeded", [])]
