"""Writers at the same time lose and double nothing."""

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

from spass.aws.invocation import AwsCall
from spass.core.errors import IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument
from spass.testing.faults import FaultPlan, inject
from tests.integration.rag.conftest import RagHarness, documents

pytestmark = pytest.mark.anyio
INDEX = IndexId("shared")
WRITERS = 8
APPENDS = 4
T = TypeVar("T")


class Distant(FaultPlan):
    """An AWS as far away as the real one, in seconds; a call of ``operation`` beyond the ``most`` allowed fails the test."""

    LATENCY: Final = {"s3": (0.02, 0.06), "dynamodb": (0.004, 0.012), "sqs": (0.004, 0.012)}

    def __init__(self, operation: str = "", most: int = 0) -> None:
        super().__init__()
        self.operation = operation
        self.most = most

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        await asyncio.sleep(random.uniform(*self.LATENCY[call.service]))
        answer = await super().around(call, run)
        done = sum(other.operation == self.operation for other in self.calls)
        assert done <= self.most or not self.operation, f"{done} {self.operation}"
        return answer


async def test_eight_writers_lose_and_double_nothing(harness: RagHarness) -> None:
    """Each writer adds documents of its own and writes over one that all of them write."""
    versions: list[int] = []

    async def write(writer: int) -> None:
        rag = harness.worker()
        for n in range(APPENDS):
            own = [(f"w{writer}-{n}-{m}", f"von {writer}") for m in range(3)]
            answer = await rag.writer.append(harness.scope(), INDEX, documents(*own, ("all", f"zuletzt {writer}-{n}")))
            versions.append(answer.version)

    await asyncio.gather(*map(write, range(WRITERS)))
    assert sorted(versions) == list(range(1, WRITERS * APPENDS + 1))
    found = await harness.contents(INDEX)
    last = found.pop("all")
    assert last.startswith("zuletzt")
    assert found == {f"w{w}-{n}-{m}": f"von {w}" for w in range(WRITERS) for n in range(APPENDS) for m in range(3)}
    answer = await harness.worker().reader.query(harness.scope(), INDEX, "von 3", 50)
    assert answer.version == WRITERS * APPENDS
    assert {hit.id for hit in answer.results if hit.score == 1.0} >= {f"w3-{n}-{m}" for n in range(APPENDS) for m in range(3)}


async def test_the_same_request_eight_times_at_once_is_carried_out_once(harness: RagHarness) -> None:
    results = await asyncio.gather(
        *(harness.write("append", INDEX, documents(("a", "x")), "one key") for _ in range(8)), return_exceptions=True
    )
    assert any(not isinstance(result, BaseException) for result in results)
    assert (await describe_index(harness.scope(), INDEX)).version == 1


async def test_deletes_and_replaces_between_appends_bring_no_old_row_back(harness: RagHarness) -> None:
    """Whatever the order was, what stands in the end was written after the last deletion or replacement."""
    log: list[tuple[int, str]] = []

    async def append(writer: int) -> None:
        rag = harness.worker()
        for n in range(4):
            answer = await rag.writer.append(harness.scope(), INDEX, documents((f"w{writer}-{n}", "x")))
            log.append((answer.version, f"w{writer}-{n}"))

    async def destroy() -> None:
        rag = harness.worker()
        for n in range(3):
            await rag.deleter.delete_index(harness.scope(), INDEX)
            answer = await rag.writer.replace(harness.scope(), INDEX, [NewDocument(id=f"r{n}", text="neu")])
            log.append((answer.version, f"r{n}"))

    await asyncio.gather(append(0), append(1), append(2), destroy())
    last_life = max(version for version, name in log if name.startswith("r"))
    wanted = {name for version, name in log if version >= last_life}
    assert set(await harness.contents(INDEX)) == wanted


async def test_readers_among_writers_always_see_one_whole_version(harness: RagHarness) -> None:
    """Every write replaces all documents by as many of its own number; a reader that saw two numbers saw two versions."""
    done = asyncio.Event()

    async def write() -> None:
        rag = harness.worker()
        for n in range(6):
            await rag.writer.replace(harness.scope(), INDEX, documents(*((f"d{m}", str(n)) for m in range(5))))
            await rag.deleter.delete_document(harness.scope(), INDEX, DocumentId("d0"))
        done.set()

    async def read() -> int:
        rag, seen, last = harness.worker(), 0, 0
        while not done.is_set():
            try:
                answer = await rag.reader.query(harness.scope(), INDEX, "x", 50)
            except IndexNotFound:
                continue
            assert len({hit.text for hit in answer.results}) == 1
            assert len(answer.results) == (5 if answer.version % 2 else 4)
            assert answer.version >= last
            seen, last = seen + 1, answer.version
        return seen

    _, *seen = await asyncio.gather(write(), read(), read())
    assert all(seen)


@pytest.mark.parametrize("loaders", [1, 4])
async def test_who_appends_beside_a_steady_loader_puts_no_more_than_two_segments(harness: RagHarness, loaders: int) -> None:
    """The loaders write batch after batch, each also over a document that all of them write, and never pause in between."""
    done = asyncio.Event()

    async def load(loader: int) -> None:
        rag, n = harness.worker(), 0
        with inject(Distant()):
            while not done.is_set():
                await rag.writer.append(harness.scope(), INDEX, documents((f"l{loader}-{n}", "x"), ("all", str(n))))
                n += 1

    async def append() -> None:
        try:
            for n in range(4):
                with inject(Distant("PutObject", most=10)):
                    await harness.worker().writer.append(harness.scope(), INDEX, documents((f"a{n}", "x"), ("all", "y")))
        finally:
            done.set()

    await harness.worker().writer.append(harness.scope(), INDEX, documents(("first", "x")))
    await asyncio.gather(append(), *map(load, range(loaders)))
    contents = await harness.contents(INDEX)
    assert {"first", "all", *(f"a{n}" for n in range(4))} <= set(contents)
