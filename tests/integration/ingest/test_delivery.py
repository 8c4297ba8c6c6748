"""Each document is stored once, even if events are repeated, reordered or concurrent, and workers are killed."""

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

from spass.aws.clients import Aws
from spass.calls.scope import Scope
from spass.core.errors import DocumentNotFound, IndexNotFound, SpassError
from spass.core.ids import DocumentId
from spass.core.jobs import Job, body_of
from spass.models.types import EmbeddingReply
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.ingest.parts import MAX_QUEUED_PARTS
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.ingest.conftest import Clock
from tests.sampling import SOAK
from tests.simulated.memory import aws_for_faults
from tests.unit.rag.ingest.harness import INDEX, Calls, IngestHarness, jsonl_file, lines, numbered_texts

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
T = TypeVar("T")


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request, versioned=True)


class SlowCalls(Calls):
    """Embedding calls that take as long as those of a model."""

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        await asyncio.sleep(random.uniform(0.005, 0.03))
        return await Calls.embed(self, scope, texts)


class CrashAfterCall(FaultPlan):
    """Kill the worker after the ``nth`` call of ``operation`` took effect and before its reply arrives."""

    def __init__(self, operation: str, nth: int) -> None:
        super().__init__(Fault.CRASH_AFTER, at=-1)
        self.operation, self.remaining = operation, nth

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        self.remaining -= call.operation == self.operation
        if not self.remaining and self.at < 0:
            self.at = len(self.calls)
        return await super().around(call, run)


async def test_each_document_is_stored_once_if_a_worker_is_killed(harness: IngestHarness, clock: Clock) -> None:
    """Deliver two files; the messages of the second come before and between those of the first."""
    documents = numbered_texts(22)
    first, second = harness.put(PATH, jsonl_file(documents)), harness.put(f"{INDEX}/b.jsonl", lines(("b", "b")))
    assert await harness.deliver(second, message="s2")
    with inject(CrashAfterCall("TransactWriteItems", 3)), pytest.raises(Crash):
        await harness.deliver(first, message="f1")
    assert (await harness.only_running()).documents_ingested == 12
    await harness.rag.writer.patch(harness.scope, INDEX, DocumentId("d0000"), DocumentPatch(text="by hand"))
    await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d0001"))
    assert await harness.deliver(first, message="f3"), "a duplicate is dropped, because the queue delivers f1 again"
    assert await harness.deliver(second, message="s1")
    assert not await harness.deliver(first, message="f1", receives=2)
    clock.seconds += LEASE_SECONDS + 1
    assert await harness.deliver(first, message="f1", receives=3)
    assert await harness.deliver(first, message="f2"), "a late duplicate is dropped"
    expected = documents | {"d0000": "by hand", "b": "b"}
    del expected["d0001"]
    assert await harness.texts() == expected
    uploads = (await harness.uploads.list(harness.scope, INDEX)).uploads
    assert sorted((upload.status, upload.documents_ingested) for upload in uploads) == [("succeeded", 1), ("succeeded", 22)]


@pytest.mark.parametrize("seed", range(60 if SOAK else 3))
async def test_workers_without_leases_store_each_document_once(harness: IngestHarness, seed: int) -> None:
    """Leases only prevent duplicate work. Correctness does not depend on them."""
    harness.change_settings(lease_seconds=-1)
    chance = random.Random(seed)
    harness.calls = SlowCalls()
    documents = numbered_texts(18)
    event = harness.put(PATH, lines("bad", *documents.items()))

    async def worker(number: int) -> None:
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0, 0.1))
            with inject(FaultPlan(chance.choice(list(Fault)), at=chance.randrange(60))):
                try:
                    if await harness.deliver(event, message=f"m{number}"):
                        return
                except (Crash, SpassError):
                    continue

    await asyncio.gather(*map(worker, range(4)))
    assert await harness.deliver(event), "a delivery without faults ingests the rest"
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("succeeded", 18, 1)
    assert await harness.texts() == documents
    assert (await describe_index(harness.scope, INDEX)).version == 5, "one version for each batch"


async def test_two_concurrent_versions_of_a_file_are_two_uploads(harness: IngestHarness) -> None:
    harness.calls = SlowCalls()
    events = [harness.put(PATH, jsonl_file({f"{name}{n}": name for n in range(6)})) for name in "ab"]
    bodies = [harness.put(f"{INDEX}/{name}.jsonl", jsonl_file({f"{name}{n}": name for n in range(6)})) for name in "cd"]
    assert len({*events, *bodies}) == 4
    assert all(await asyncio.gather(*(harness.deliver(event) for event in (*events, *bodies, *events, *bodies))))
    uploads = (await harness.uploads.list(harness.scope, INDEX)).uploads
    assert len(uploads) == 4
    for upload in uploads:
        is_superseded = [error.code for error in upload.errors] == ["superseded"]
        assert is_superseded if upload.status == "failed" else upload.documents_ingested == 6
    assert sum(upload.status == "failed" for upload in uploads) <= 1
    assert {f"{name}{n}" for name in "bcd" for n in range(6)} <= (await harness.texts()).keys()


@pytest.mark.parametrize("seed", range(40 if SOAK else 3))
async def test_the_newest_of_concurrent_versions_wins(harness: IngestHarness, clock: Clock, seed: int) -> None:
    """Deliver each event three times, kill workers, and deliver the events again."""
    chance = random.Random(seed)
    harness.calls = SlowCalls()
    texts = ["first", "second", "third"]
    events = [harness.put(PATH, jsonl_file(numbered_texts(18, text))) for text in texts]
    deliveries = [(event, f"m{n}") for n, event in enumerate(events)] * 3
    chance.shuffle(deliveries)

    async def deliver(body: str, message: str) -> None:
        await asyncio.sleep(chance.uniform(0, 0.3))
        with inject(FaultPlan(chance.choice([None, None, *Fault]), at=chance.randrange(60))):
            try:
                await harness.deliver(body, message=message)
            except (Crash, SpassError):
                return

    await asyncio.gather(*(deliver(*delivery) for delivery in deliveries))
    for _ in range(3):
        clock.seconds += LEASE_SECONDS + 1
        chance.shuffle(deliveries)
        for body, message in deliveries:
            await harness.deliver(body, message=message)
    assert await harness.texts() == numbered_texts(18, "third")
    uploads = (await harness.uploads.list(harness.scope, INDEX)).uploads
    outcomes = [(upload.status, [error.code for error in upload.errors]) for upload in uploads]
    assert len(outcomes) == 3
    assert all(outcome in (("succeeded", []), ("failed", ["superseded"])) for outcome in outcomes)


async def test_an_ingest_does_not_recreate_an_index_that_is_deleted_meanwhile(harness: IngestHarness) -> None:
    harness.calls = SlowCalls()
    await harness.rag.writer.append(harness.scope, INDEX, [NewDocument(id="old", text="old")])
    events = [harness.put(f"{INDEX}/{n}.jsonl", jsonl_file(numbered_texts(40))) for n in range(2)]
    work = [asyncio.create_task(harness.deliver(event)) for event in events]
    while (await describe_index(harness.scope, INDEX)).version < 4:
        await asyncio.sleep(0.02)
    assert await harness.rag.deleter.delete_index(harness.scope, INDEX)
    assert all(await asyncio.gather(*work))
    for upload in (await harness.uploads.list(harness.scope, INDEX)).uploads:
        assert (upload.status, upload.errors[0].code) == ("failed", "index_replaced")
    with pytest.raises(IndexNotFound):
        await harness.texts()


async def test_an_ingest_does_not_restore_documents_that_are_deleted_meanwhile(harness: IngestHarness) -> None:
    harness.calls = SlowCalls()
    documents = numbered_texts(40)
    work = asyncio.create_task(harness.deliver(harness.put(PATH, jsonl_file(documents))))
    deleted: set[str] = set()
    while not work.done():
        for name in documents.keys() - deleted:
            try:
                await harness.rag.reader.document(harness.scope, INDEX, DocumentId(name))
            except (DocumentNotFound, IndexNotFound):
                continue
            assert await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId(name))
            deleted.add(name)
            break
        await asyncio.sleep(0.01)
    assert await work
    assert deleted
    assert (await harness.texts()).keys() == documents.keys() - deleted


class Queue:
    """A queue that delivers its messages to concurrent workers, in random order and some of them twice."""

    def __init__(self, harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.harness, self.chance = harness, random.Random(seed)
        self.waiting: list[str] = []
        self.delivered_now = 0

        async def send(_: object, job: Job) -> None:
            self.waiting.append(body_of(job))

        monkeypatch.setattr("spass.aws.jobs.AwsJobs.send", send)

    async def deliver_all(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(6)))
        while self.waiting:
            assert await self.harness.deliver(self.waiting.pop(0))

    async def _worker(self) -> None:
        for _ in range(400):
            if not self.waiting:
                if not self.delivered_now:
                    return
                await asyncio.sleep(0.05)
                continue
            body = self.waiting.pop(self.chance.randrange(len(self.waiting)))
            self.delivered_now += 1
            with inject(FaultPlan(self.chance.choice([None, None, *Fault]), at=self.chance.randrange(30))):
                try:
                    is_done = await self.harness.deliver(body, message=body, seconds=self.chance.choice([60, 870]))
                except (Crash, SpassError):
                    is_done = False
            if not is_done or self.chance.random() < 0.2:
                self.waiting.append(body)
            self.delivered_now -= 1
            if (await self.harness.only_upload()).status == "succeeded":
                return


@pytest.mark.parametrize("seed", range(60 if SOAK else 2))
async def test_concurrent_parts_store_each_document_once(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Kill workers at random calls. Every lease has expired when it is acquired."""
    harness.change_settings(small_bytes=200, part_bytes=200, lease_seconds=-1)
    queue = Queue(harness, monkeypatch, seed)
    documents = numbered_texts(60)
    body = lines("bad", *documents.items(), "bad")
    event = harness.put(PATH, body)
    assert await harness.deliver(event)
    upload = await harness.only_upload()
    assert (upload.status, upload.bytes_done, len(queue.waiting)) == ("running", 0, MAX_QUEUED_PARTS)
    harness.calls = SlowCalls()
    await queue.deliver_all()
    assert await harness.deliver(event)
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("succeeded", 60, 2)
    assert (upload.bytes_done, [error.line for error in upload.errors]) == (len(body), [1, 62])
    assert await harness.texts() == documents
