"""An append that loses races plans again, but puts its rows only if they changed."""

import asyncio

import pytest

from spass.core.ids import DocumentId, IndexId
from spass.rag.index.manifest import read_manifest
from spass.rag.write.merge_policy import HEADROOM
from spass.store.keys import rag_manifest
from spass.store.writes import Delete
from spass.testing.faults import inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents

pytestmark = pytest.mark.anyio

A = DocumentId("a")
SEGMENT_OBJECTS = 5


async def test_an_append_that_loses_many_races_puts_its_rows_once(harness: RagHarness, index: IndexId) -> None:
    """The first attempt merges. The second one puts the rows as an own segment, and the later ones reuse it."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(9)))
    with inject(plan):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert (answer.version, answer.doc_count) == (11, 11)
    assert plan.count("PutObject") == 2 * SEGMENT_OBJECTS
    assert {document.id for document in (await rival.reader.documents(harness.scope, index)).documents} == {
        "a",
        "old",
        *(f"r{n}" for n in range(9)),
    }


async def test_an_append_whose_first_attempt_merges_nothing_puts_its_rows_once(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(4)))
    with inject(plan):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert plan.count("PutObject") == SEGMENT_OBJECTS


async def test_a_document_has_the_creation_time_of_the_version_that_it_replaces(harness: RagHarness, index: IndexId) -> None:
    """Another writer deletes the document and creates it again, twice."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    created: list[str] = []

    async def recreate() -> None:
        await asyncio.sleep(0.002)
        await rival.deleter.delete_document(harness.scope, index, A)
        await rival.writer.append(harness.scope, index, documents(("a", "anders")))
        created.append((await rival.reader.document(harness.scope, index, A)).created_at)

    with inject(RacingWriters(recreate, recreate)):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert answer.replaced == 1
    stored = await rival.reader.document(harness.scope, index, A)
    assert (stored.text, stored.created_at) == ("neu", created[-1])
    assert len({*created}) == 2
    assert stored.updated_at >= stored.created_at


async def test_an_append_that_lost_a_race_is_not_older_than_the_winner(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    times: list[str] = []

    async def append_first() -> None:
        await asyncio.sleep(0.003)
        await rival.writer.append(harness.scope, index, documents(("a", "anders")))
        times.append((await rival.reader.document(harness.scope, index, A)).updated_at)

    with inject(RacingWriters(append_first)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu"), ("b", "neu")))
    stored = await rival.reader.document(harness.scope, index, A)
    assert stored.text == "neu"
    assert [*times, stored.updated_at] == sorted([*times, stored.updated_at])
    new = await rival.reader.document(harness.scope, index, DocumentId("b"))
    assert new.created_at <= new.updated_at


async def test_a_document_deleted_during_an_append_gets_a_new_creation_time(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    created = (await rival.reader.document(harness.scope, index, A)).created_at
    await asyncio.sleep(0.002)
    with inject(RacingWriters(lambda: rival.deleter.delete_document(harness.scope, index, A))):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert (answer.replaced, answer.doc_count) == (0, 10)
    assert (await rival.reader.document(harness.scope, index, A)).created_at > created


async def test_an_append_writes_to_the_new_generation_of_a_recreated_index(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))

    async def recreate_index() -> None:
        await rival.deleter.delete_index(harness.scope, index)
        await rival.writer.append(harness.scope, index, documents(("r", "x")))

    with inject(RacingWriters(recreate_index, recreate_index)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    stored = await harness.cold().reader.documents(harness.scope, index)
    assert {document.id: document.text for document in stored.documents} == {"a": "neu", "r": "x"}


async def test_a_swap_compares_generations_when_revisions_are_equal(harness: RagHarness, index: IndexId) -> None:
    """An operator removed the item with its tombstone. The recreated index has the same revision as the old one."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))
    before = await read_manifest(harness.scope.store, index)

    async def remove_and_recreate() -> None:
        await harness.scope.store.table.write(Delete(rag_manifest(harness.scope.store.tenant, index)))
        await rival.writer.append(harness.scope, index, documents(("r", "x")))
        assert (await read_manifest(harness.scope.store, index)).revision == before.revision

    with inject(RacingWriters(remove_and_recreate)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    stored = await harness.cold().reader.documents(harness.scope, index)
    assert {document.id for document in stored.documents} == {"a", "r"}


async def test_a_later_attempt_merges_if_the_index_has_the_most_segments(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    monkeypatch.setattr("spass.rag.write.writer.MAX_SEGMENTS", 1)
    monkeypatch.setattr("spass.rag.write.merge_policy.MAX_SEGMENTS", 1 + HEADROOM)
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, documents(("d0", "y"))))):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu"), ("d1", "z")))
    manifest = await read_manifest(harness.scope.store, index)
    assert (len(manifest.segments), manifest.doc_count) == (1, 10)
    stored = {document.id: document.text for document in (await rival.reader.documents(harness.scope, index)).documents}
    assert stored == {f"d{n}": "x" for n in range(9)} | {"a": "neu", "d0": "y", "d1": "z"}
