"""An append that other writers overtake: what it does again, and what it does not."""

import asyncio

import pytest

from spass.aws.keys import rag_manifest
from spass.aws.writes import Delete
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.manifest import read_manifest
from spass.rag.write.merge_policy import HEADROOM
from spass.testing.faults import inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents

pytestmark = pytest.mark.anyio

A = DocumentId("a")
SEGMENT_OBJECTS = 5


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.aws.swap._MAX_BACKOFF_SECONDS", 0)


async def test_its_rows_are_put_once_however_often_it_is_overtaken(harness: RagHarness, index: IndexId) -> None:
    """The first try merges; of all later ones only the first puts anything."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(9)))
    with inject(plan):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert (answer.version, answer.doc_count) == (11, 11)
    assert plan.count("PutObject") == 2 * SEGMENT_OBJECTS
    assert {found.id for found in (await rival.reader.documents(harness.scope, index)).documents} == {
        "a",
        "old",
        *(f"r{n}" for n in range(9)),
    }


async def test_rows_that_were_put_alone_at_first_are_not_put_again(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(4)))
    with inject(plan):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert plan.count("PutObject") == SEGMENT_OBJECTS


async def test_a_document_keeps_when_it_was_created_also_if_that_changed_meanwhile(harness: RagHarness, index: IndexId) -> None:
    """Another writer deletes the document and writes it anew, then again: its creation is the last one's."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    created: list[str] = []

    async def anew() -> None:
        await asyncio.sleep(0.002)
        await rival.deleter.delete_document(harness.scope, index, A)
        await rival.writer.append(harness.scope, index, documents(("a", "anders")))
        created.append((await rival.reader.document(harness.scope, index, A)).created_at)

    with inject(RacingWriters(anew, anew)):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert answer.replaced == 1
    found = await rival.reader.document(harness.scope, index, A)
    assert (found.text, found.created_at) == ("neu", created[-1])
    assert len({*created}) == 2
    assert found.updated_at >= found.created_at


async def test_an_append_that_was_overtaken_is_no_earlier_than_what_overtook_it(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    times: list[str] = []

    async def faster() -> None:
        await asyncio.sleep(0.003)
        await rival.writer.append(harness.scope, index, documents(("a", "anders")))
        times.append((await rival.reader.document(harness.scope, index, A)).updated_at)

    with inject(RacingWriters(faster)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu"), ("b", "neu")))
    found = await rival.reader.document(harness.scope, index, A)
    assert found.text == "neu"
    assert [*times, found.updated_at] == sorted([*times, found.updated_at])
    new = await rival.reader.document(harness.scope, index, DocumentId("b"))
    assert new.created_at <= new.updated_at


async def test_a_document_that_was_deleted_meanwhile_is_a_new_one(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("a", "alt"), *((f"d{n}", "x") for n in range(9))))
    created = (await rival.reader.document(harness.scope, index, A)).created_at
    await asyncio.sleep(0.002)
    with inject(RacingWriters(lambda: rival.deleter.delete_document(harness.scope, index, A))):
        answer = await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    assert (answer.replaced, answer.doc_count) == (0, 10)
    assert (await rival.reader.document(harness.scope, index, A)).created_at > created


async def test_rows_follow_into_another_life_of_the_index(harness: RagHarness, index: IndexId) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))

    async def reborn() -> None:
        await rival.deleter.delete_index(harness.scope, index)
        await rival.writer.append(harness.scope, index, documents(("r", "x")))

    with inject(RacingWriters(reborn, reborn)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    found = await harness.cold().reader.documents(harness.scope, index)
    assert {document.id: document.text for document in found.documents} == {"a": "neu", "r": "x"}


async def test_rows_stay_out_of_another_life_also_where_revisions_began_anew(harness: RagHarness, index: IndexId) -> None:
    """The item was removed by hand, tombstone and all, and the new life has come just as far as the old one."""
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(("old", "alt")))
    before = await read_manifest(harness.scope.store, index)

    async def removed_and_reborn() -> None:
        await harness.scope.store.table.write(Delete(rag_manifest(harness.scope.store.tenant, index)))
        await rival.writer.append(harness.scope, index, documents(("r", "x")))
        assert (await read_manifest(harness.scope.store, index)).revision == before.revision

    with inject(RacingWriters(removed_and_reborn)):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu")))
    found = await harness.cold().reader.documents(harness.scope, index)
    assert {document.id for document in found.documents} == {"a", "r"}


async def test_it_merges_after_all_when_no_place_for_a_segment_is_left(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = harness.cold()
    await rival.writer.append(harness.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    monkeypatch.setattr("spass.rag.write.upsert.MAX_SEGMENTS", 1)
    monkeypatch.setattr("spass.rag.write.merge_policy.MAX_SEGMENTS", 1 + HEADROOM)
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, documents(("d0", "y"))))):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "neu"), ("d1", "z")))
    manifest = await read_manifest(harness.scope.store, index)
    assert (len(manifest.segments), manifest.doc_count) == (1, 10)
    found = {document.id: document.text for document in (await rival.reader.documents(harness.scope, index)).documents}
    assert found == {f"d{n}": "x" for n in range(9)} | {"a": "neu", "d0": "y", "d1": "z"}
