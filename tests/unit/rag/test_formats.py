"""An index of the release before, which wrote no codes, is served unchanged, and its next merges write codes.

``recorded/index_without_codes.json`` has the manifest and the objects of an index that the release before wrote, and the answers
that it gave. Workers of both releases may run at the same time.
"""

import base64
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from spass.aws.keys import rag_manifest
from spass.aws.writes import Put
from spass.core.ids import DocumentId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.index import manifest as manifests
from spass.rag.index.cache import ObjectCache
from spass.rag.index.codes import encode_codes
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.manifest import CODED, VECTORS_ALONE, Manifest, Segment, decode_manifest, read_manifest
from spass.rag.index.objects import CODES, VECTORS
from spass.rag.index.segments import decode_vectors
from spass.rag.write.merge_job import merge
from spass.rag.write.sweep import GARBAGE_SECONDS, ORPHAN_SECONDS, SweepResult, sweep
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import DIMENSIONS, RagHarness
from tests.unit.rag.search.test_reader_queries import INDEX, WrittenIndex, run_query

pytestmark = pytest.mark.anyio

RECORDED: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded/index_without_codes.json").read_text())
BUDGETS: Final = (0, 4000, 6000, 2**20)  # nothing, some codes, codes alone, and everything of the recorded index
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
    monkeypatch.setattr("spass.aws.swap._MAX_BACKOFF_SECONDS", 0)


@contextmanager
def release_before() -> Iterator[None]:
    """Read and write as the release before: it knows no codes, and drops the format of every segment when it swaps."""
    encode = manifests._encode_segment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 2**60)
        patch.setattr(
            manifests, "_encode_segment", lambda one: {key: value for key, value in encode(one).items() if key != "format"}
        )
        yield


def document(number: int, text: str = "text") -> NewDocument:
    return NewDocument(id=f"d{number:02}", text=f"{text} {number}", metadata={"n": number})


async def restore(harness: RagHarness) -> WrittenIndex:
    """Put the recorded index into the table and the bucket, and return its documents."""
    store = harness.scope.store
    for key, body in RECORDED["objects"].items():
        await store.objects.put(key, base64.b64decode(body))
    await store.table.write(Put(rag_manifest(store.tenant, INDEX), RECORDED["manifest"]))
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
        if segment.format == CODED:
            vectors = decode_vectors(await harness.scope.store.objects.get(prefix + VECTORS))
            assert await harness.scope.store.objects.get(prefix + CODES) == encode_codes(vectors)
        assert {part for part in stored if not part.startswith("dead-")} - {CODES} == set(PARTS)
    return manifest


async def test_an_index_of_the_release_before_gets_the_same_answers(harness: RagHarness) -> None:
    written = await restore(harness)
    before = await stored_state(harness)
    for budget in BUDGETS:
        worker = harness.cold(budget=budget)
        with inject(FaultPlan()) as plan:
            for recorded in (*RECORDED["answers"], *RECORDED["answers"]):
                query, top_k, filter_ = recorded["query"], recorded["top_k"], recorded["filter"]
                found = await run_query(harness, worker, query, top_k, filter_ or None)
                assert [list(pair) for pair in found] == recorded["results"]
                assert found == written.best(query, top_k, filter_, None)
            answer = await worker.reader.query(harness.scope, INDEX, "text 7", 1)
            assert answer.version == RECORDED["manifest"]["version"]
        assert {call.operation for call in plan.calls} == {"GetItem", "GetObject"}, "a query writes nothing"
        assert not any(str(call.parameters.get("Key")).endswith("/codes") for call in plan.calls)
    assert await stored_state(harness) == before


def test_a_manifest_without_formats_has_segments_of_vectors_alone() -> None:
    decoded = decode_manifest(RECORDED["manifest"])
    assert [segment.format for segment in decoded.segments] == [VECTORS_ALONE] * 3
    assert [(segment.rows, segment.deleted_rows) for segment in decoded.segments] == [(40, 3), (18, 1), (5, 0)]


async def test_the_simulated_release_before_writes_what_the_recorded_one_wrote(harness: RagHarness) -> None:
    with release_before():
        await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(40)])
        await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId("d03"))
    item, objects = await stored_state(harness)
    assert isinstance(item, dict)
    assert {key.rsplit("/", 1)[1] for key in objects} == set(PARTS)
    recorded = json.loads(RECORDED["manifest"]["segments"])[0]
    (entry,) = json.loads(item["segments"])
    assert entry.keys() == recorded.keys()


@pytest.mark.parametrize(("rows", "formats"), [(3, [0, 0, 0, 0]), (7, [0, 0, 1]), (20, [1])], ids=["none", "one", "all"])
async def test_an_append_writes_codes_for_what_it_merges(harness: RagHarness, rows: int, formats: list[int]) -> None:
    written = await restore(harness)
    warm = harness.cold()
    await check_answers(harness, written, warm)
    added = [document(n, "other") for n in range(100, 100 + rows)]
    answer = await harness.rag.writer.append(harness.scope, INDEX, added)
    written.documents_by_id.update({one.id: one for one in added})
    assert (answer.version, answer.doc_count) == (8, len(written.documents_by_id))
    manifest = await check_segments(harness)
    assert sorted(segment.format for segment in manifest.segments) == formats
    await check_answers(harness, written, warm)


@pytest.mark.parametrize("appended_by", ["this release", "the release before"])
async def test_a_merge_job_writes_codes_for_what_it_merges(
    harness: RagHarness, appended_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)  # four segments of 16 to 63 rows are merged
    written = await restore(harness)
    warm = harness.cold()
    for first in (100, 120):
        added = [document(n) for n in range(first, first + 20)]
        with release_before() if appended_by == "the release before" else pytest.MonkeyPatch.context():
            await harness.rag.writer.append(harness.scope, INDEX, added)
        written.documents_by_id.update({one.id: one for one in added})
    await check_answers(harness, written, warm)
    before = await check_segments(harness)
    assert await merge(harness.scope.store, ObjectCache(), INDEX, Deadline.after(3600))
    after = await check_segments(harness)
    assert [(one.rows, one.format) for one in after.segments] == [(5, VECTORS_ALONE), (94, CODED)]
    assert after.version == before.version
    await check_answers(harness, written, warm)


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
async def test_workers_of_both_releases_may_alternate(harness: RagHarness, seed: int) -> None:
    choice = random.Random(seed)
    written = await restore(harness)
    new, old = harness.cold(), harness.cold()
    added = [document(n) for n in range(200, 211)]
    await new.writer.append(harness.scope, INDEX, added)
    written.documents_by_id.update({one.id: one for one in added})
    formats = [one.format for one in (await check_segments(harness)).segments]
    assert sorted(formats) == [VECTORS_ALONE, VECTORS_ALONE, CODED]
    for number in range(12):
        if number % 3 == 2:
            with release_before():
                await step(harness, old, written, choice)
        else:
            await step(harness, new, written, choice)
        await check_segments(harness)
        await check_answers(harness, written, new)
        with release_before():
            await check_answers(harness, written, old)
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


async def test_the_release_before_keeps_codes_that_it_does_not_know(harness: RagHarness) -> None:
    """They are deleted with their segment."""
    await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(40)])
    with release_before():
        await harness.rag.writer.append(harness.scope, INDEX, [document(50)])
    manifest = await read_manifest(harness.scope.store, INDEX)
    assert [one.format for one in manifest.segments] == [VECTORS_ALONE] * 2
    codes = f"rag/{INDEX}/{manifest.generation}/{manifest.segments[0].id}/{CODES}"
    assert await run_sweep(harness, ORPHAN_SECONDS + 60) == SweepResult(merges=1), "a job will write the codes again"
    assert codes in await harness.scope.store.objects.list_keys("rag/")
    await harness.rag.writer.append(harness.scope, INDEX, [document(n) for n in range(60, 99)])
    assert [one.format for one in (await check_segments(harness)).segments] == [CODED]
    await check_sweep(harness)
    assert codes not in await harness.scope.store.objects.list_keys("rag/")


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
