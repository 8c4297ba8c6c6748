"""Run concurrent writers and readers. No document is lost, duplicated or restored."""

import asyncio
import random
from typing import Final, TypeVar

import pytest

from spass.core.errors import IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import FaultPlan, inject
from tests.integration.rag.conftest import RagHarness, documents

pytestmark = pytest.mark.anyio
INDEX = IndexId("shared")
WRITERS = 8
APPENDS = 4
T = TypeVar("T")


class RealisticLatency(FaultPlan):
    """Latencies of AWS, in seconds. The test fails if ``operation`` is called more than ``most`` times."""

    LATENCY: Final = {"s3": (0.02, 0.06), "dynamodb": (0.004, 0.012), "sqs": (0.004, 0.012)}

    def __init__(self, operation: str = "", most: int = 0) -> None:
        super().__init__()
        self.operation = operation
        self.most = most

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        await asyncio.sleep(random.uniform(*self.LATENCY[call.service]))
        answer = await super().around(call, run)
        count = sum(other.operation == self.operation for other in self.calls)
        assert count <= self.most or not self.operation, f"{count} {self.operation}"
        return answer


async def test_eight_concurrent_writers_lose_and_duplicate_no_document(harness: RagHarness) -> None:
    """Each writer adds its own documents and replaces one that all writers write."""
    versions: list[int] = []

    async def write(writer: int) -> None:
        rag = harness.worker()
        for n in range(APPENDS):
            own = [(f"w{writer}-{n}-{m}", f"von {writer}") for m in range(3)]
            answer = await rag.writer.append(harness.scope(), INDEX, documents(*own, ("all", f"zuletzt {writer}-{n}")))
            versions.append(answer.version)

    await asyncio.gather(*map(write, range(WRITERS)))
    assert sorted(versions) == list(range(1, WRITERS * APPENDS + 1))
    stored = await harness.texts(INDEX)
    last = stored.pop("all")
    assert last.startswith("zuletzt")
    assert stored == {f"w{w}-{n}-{m}": f"von {w}" for w in range(WRITERS) for n in range(APPENDS) for m in range(3)}
    answer = await harness.worker().reader.query(harness.scope(), INDEX, "von 3", 50)
    assert answer.version == WRITERS * APPENDS
    assert {hit.id for hit in answer.results if hit.score == 1.0} >= {f"w3-{n}-{m}" for n in range(APPENDS) for m in range(3)}


async def test_eight_concurrent_requests_with_one_key_write_once(harness: RagHarness) -> None:
    results = await asyncio.gather(
        *(harness.write("append", INDEX, documents(("a", "x")), "one key") for _ in range(8)), return_exceptions=True
    )
    assert any(not isinstance(result, BaseException) for result in results)
    assert (await describe_index(harness.scope(), INDEX)).version == 1


async def test_deletes_and_replaces_between_appends_restore_no_document(harness: RagHarness) -> None:
    """The final documents are those of the last replacement and of later appends."""
    log: list[tuple[int, str]] = []

    async def append(writer: int) -> None:
        rag = harness.worker()
        for n in range(4):
            answer = await rag.writer.append(harness.scope(), INDEX, documents((f"w{writer}-{n}", "x")))
            log.append((answer.version, f"w{writer}-{n}"))

    async def recreate() -> None:
        rag = harness.worker()
        for n in range(3):
            await rag.deleter.delete_index(harness.scope(), INDEX)
            answer = await rag.writer.replace(harness.scope(), INDEX, [NewDocument(id=f"r{n}", text="neu")])
            log.append((answer.version, f"r{n}"))

    await asyncio.gather(append(0), append(1), append(2), recreate())
    last_recreation = max(version for version, name in log if name.startswith("r"))
    expected = {name for version, name in log if version >= last_recreation}
    assert set(await harness.texts(INDEX)) == expected


async def test_a_query_during_writes_reads_one_consistent_version(harness: RagHarness) -> None:
    """Each write replaces all documents. Their text is the number of the write, so one version has one text."""
    done = asyncio.Event()

    async def write() -> None:
        rag = harness.worker()
        for n in range(6):
            await rag.writer.replace(harness.scope(), INDEX, documents(*((f"d{m}", str(n)) for m in range(5))))
            await rag.deleter.delete_document(harness.scope(), INDEX, DocumentId("d0"))
        done.set()

    async def read() -> int:
        rag, reads, last = harness.worker(), 0, 0
        while not done.is_set():
            try:
                answer = await rag.reader.query(harness.scope(), INDEX, "x", 50)
            except IndexNotFound:
                continue
            assert len({hit.text for hit in answer.results}) == 1
            assert len(answer.results) == (5 if answer.version % 2 else 4)
            assert answer.version >= last
            reads, last = reads + 1, answer.version
        return reads

    _, *reads = await asyncio.gather(write(), read(), read())
    assert all(reads)


@pytest.mark.parametrize("loaders", [1, 4])
async def test_an_append_during_a_load_puts_at_most_two_segments(harness: RagHarness, loaders: int) -> None:
    """The loaders append without a pause. Each append also replaces a document that all of them write."""
    done = asyncio.Event()

    async def load(loader: int) -> None:
        rag, n = harness.worker(), 0
        with inject(RealisticLatency()):
            while not done.is_set():
                await rag.writer.append(harness.scope(), INDEX, documents((f"l{loader}-{n}", "x"), ("all", str(n))))
                n += 1

    async def append() -> None:
        try:
            for n in range(4):
                with inject(RealisticLatency("PutObject", most=10)):
                    await harness.worker().writer.append(harness.scope(), INDEX, documents((f"a{n}", "x"), ("all", "y")))
        finally:
            done.set()

    await harness.worker().writer.append(harness.scope(), INDEX, documents(("first", "x")))
    await asyncio.gather(append(), *map(load, range(loaders)))
    texts = await harness.texts(INDEX)
    assert {"first", "all", *(f"a{n}" for n in range(4))} <= set(texts)
