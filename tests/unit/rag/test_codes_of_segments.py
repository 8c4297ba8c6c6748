"""Appends and merges write the codes of large segments, queries give the same answers with and without room for them, and they
are swept with their segment."""

import random
import time
from typing import Final

import pytest

from spass.core.ids import DocumentId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.manifest import CODED, VECTORS_ALONE, Manifest, Segment, has_codes, read_manifest
from spass.rag.index.objects import CODES, VECTORS
from spass.rag.index.segments import decode_vectors, encode_codes
from spass.rag.write.merge_job import merge
from spass.rag.write.sweep import GARBAGE_SECONDS, ORPHAN_SECONDS, SweepResult, sweep
from spass.store.keys import rag_manifest
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import DIMENSIONS, RagHarness
from tests.unit.rag.search.test_reader_queries import INDEX, WrittenIndex, run_query

pytestmark = pytest.mark.anyio

BUDGETS: Final = (0, 4000, 6000, 2**20)  # nothing, some codes, codes alone, and everything of the index
BLOCK_ROWS: Final = 5
CODED_ROWS: Final = 10  # a smaller segment has no codes
DELETED: Final = (3, 17, 21, 44)
QUERIES: Final[list[tuple[str, int, dict[str, Json]]]] = [
    ("text 7", 6, {}),
    ("text 9", 80, {}),
    ("other 3", 9, {"n": {"$gte": 20}}),
]
PARTS: Final = ("docs.jsonl", "ids", "meta", "offsets.npy", "vectors.npy")


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.index.manifest._MIN_DIMENSIONS", 1)
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", CODED_ROWS * DIMENSIONS)
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", BLOCK_ROWS * 4 * DIMENSIONS)
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._FIRST_ROWS", 3)
    monkeypatch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0)


def document(number: int, text: str = "text") -> NewDocument:
    return NewDocument(id=f"d{number:02}", text=f"{text} {number}", metadata={"n": number})


async def write_index(harness: RagHarness) -> WrittenIndex:
    """Write segments of 40, 18 and 5 documents, delete some, and return the others."""
    for first, last in ((0, 40), (40, 58), (58, 63)):
        await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(first, last)])
    for n in DELETED:
        await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId(f"d{n:02}"))
    return WrittenIndex({f"d{n:02}": document(n) for n in range(63) if n not in DELETED})


async def stored_state(harness: RagHarness) -> tuple[object, dict[str, bytes]]:
    """Return the item and all objects of the index."""
    store = harness.scope.store
    keys = await store.objects.list_keys("rag/")
    return await store.table.get(rag_manifest(store.tenant, INDEX)), {key: await store.objects.get(key) for key in keys}


async def check_answers(harness: RagHarness, written: WrittenIndex, *workers: Rag) -> None:
    """Compare the answers of ``workers``, and of workers with empty caches, with brute force."""
    cold = [harness.cold(budget=budget) for budget in BUDGETS]
    for query, top_k, filter_ in QUERIES:
        expected = written.best(query, top_k, filter_, None)
        for worker in (*workers, *cold):
            assert await run_query(harness, worker, query, top_k, filter_ or None) == expected


async def check_segments(harness: RagHarness) -> Manifest:
    """Check that the codes of each segment are those of its vectors. Return the current version."""
    manifest = await read_manifest(harness.scope.store, INDEX)
    for segment in manifest.segments:
        prefix = f"rag/{INDEX}/{manifest.generation}/{segment.id}/"
        stored = {key.removeprefix(prefix) for key in await harness.scope.store.objects.list_keys(prefix)}
        assert segment.format == (CODED if has_codes(segment.rows, DIMENSIONS) else VECTORS_ALONE)
        if segment.format == CODED:
            vectors = decode_vectors(await harness.scope.store.objects.get(prefix + VECTORS))
            assert await harness.scope.store.objects.get(prefix + CODES) == encode_codes(vectors)
        assert {part for part in stored if not part.startswith("dead-")} - {CODES} == set(PARTS)
    return manifest


async def step(harness: RagHarness, worker: Rag, written: WrittenIndex, choice: random.Random) -> None:
    """Write once: append, replace a few documents, patch, delete, or merge in the background."""
    names = sorted(written.documents_by_id)
    match choice.choice(["append", "append", "append", "patch", "delete", "merge"]):
        case "append":
            first = choice.randrange(90)
            added = [document(n, choice.choice(["text", "other"])) for n in range(first, first + choice.choice([1, 4, 11, 30]))]
            await worker.writer.append(harness.scope, INDEX, added)
            written.documents_by_id.update({one.id: one for one in added})
        case "patch":
            name = choice.choice(names)
            patched = written.documents_by_id[name].model_copy(update={"text": f"patched {choice.randrange(9)}"})
            await worker.writer.patch(harness.scope, INDEX, DocumentId(name), DocumentPatch(text=patched.text))
            written.documents_by_id[name] = patched
        case "delete":
            for name in choice.sample(names, 3):
                await worker.deleter.delete_document(harness.scope, INDEX, DocumentId(name))
                del written.documents_by_id[name]
        case _:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)
                patch.setattr("spass.rag.write.merge_policy._DELETED_DIVISOR", 100)
                await merge(harness.scope.store, ObjectCache(), INDEX, Deadline.after(3600))


@pytest.mark.parametrize("seed", range(4))
async def test_writes_of_two_workers_keep_the_codes_and_the_answers(harness: RagHarness, seed: int) -> None:
    choice = random.Random(seed)
    written = await write_index(harness)
    workers = (harness.cold(), harness.cold())
    assert CODED in {one.format for one in (await check_segments(harness)).segments}
    for number in range(12):
        await step(harness, workers[number % 2], written, choice)
        await check_segments(harness)
        await check_answers(harness, written, *workers)
    await check_sweep(harness)


async def check_sweep(harness: RagHarness) -> None:
    """Sweep after a day, and check that exactly the objects of the current version remain."""
    before = await stored_state(harness)
    manifest = await read_manifest(harness.scope.store, INDEX)
    prefix = f"rag/{INDEX}/{manifest.generation}/"
    expected = {key for one in manifest.segments for key in before[1] if is_part(key.removeprefix(prefix), one)}
    await run_sweep(harness, ORPHAN_SECONDS + 60)
    assert set((await stored_state(harness))[1]) == expected


def is_part(path: str, segment: Segment) -> bool:
    name, _, part = path.partition("/")
    return name == segment.id and part in (*PARTS, CODES, segment.bitmap_object)


async def run_sweep(harness: RagHarness, after: int) -> SweepResult:
    return await sweep(harness.scope.store, int(time.time()) + after, Deadline.after(60))


@pytest.mark.parametrize("write", ["replace", "append", "patch", "delete"])
async def test_codes_of_retired_segments_are_swept_with_them_after_an_hour(harness: RagHarness, write: str) -> None:
    await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(20)])
    await harness.rag.writer.append(harness.scope, INDEX, [document(99, "kept")])
    (segment, kept) = (await check_segments(harness)).segments
    assert (segment.format, kept.format) == (CODED, VECTORS_ALONE)
    codes = [key for key in await harness.scope.store.objects.list_keys("rag/") if key.endswith(f"/{CODES}")]
    match write:
        case "replace":
            await harness.rag.writer.replace(harness.scope, INDEX, [document(n) for n in range(30)])
        case "append":
            await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(18, 48)])
        case "patch":
            for n in range(20):
                await harness.rag.writer.patch(harness.scope, INDEX, DocumentId(f"d{n:02}"), DocumentPatch(text="neu"))
        case _:
            for n in range(20):
                await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId(f"d{n:02}"))
    assert segment.id not in {one.id for one in (await check_segments(harness)).segments}
    before = set((await stored_state(harness))[1])
    assert await run_sweep(harness, GARBAGE_SECONDS - 60) == SweepResult()
    await run_sweep(harness, GARBAGE_SECONDS + 60)
    after = set((await stored_state(harness))[1])
    assert {key for key in before - after if f"/{segment.id}/" in key} >= {*codes}
    assert not {key for key in after if f"/{segment.id}/" in key}
    await check_segments(harness)
    await check_sweep(harness)


async def test_codes_of_a_writer_that_died_are_swept_after_a_day(harness: RagHarness) -> None:
    await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(20)])
    before = await stored_state(harness)
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=len(PARTS) + 2)), pytest.raises(Crash):
        await harness.cold().writer.replace(harness.scope, INDEX, [document(n) for n in range(30)])
    crashed = await stored_state(harness)
    assert sum(key.endswith(f"/{CODES}") for key in crashed[1]) == 2
    assert await run_sweep(harness, GARBAGE_SECONDS + 60) == SweepResult()
    assert await run_sweep(harness, ORPHAN_SECONDS + 60) == SweepResult(orphans=len(PARTS) + 1)
    assert await stored_state(harness) == before
