"""The sweep removes what nobody needs, when nobody can need it any more, and nothing else."""

import contextlib
import dataclasses
import time

import pytest

from spass.aws.faults import Crash, Fault, FaultPlan, inject
from spass.core.errors import SpassError
from spass.core.ids import DocumentId, IndexId
from spass.core.time import Deadline
from spass.rag.cache import ObjectCache
from spass.rag.merge import merge_due
from spass.rag.merger import merge
from spass.rag.swap import read_manifest
from spass.rag.sweep import ORPHAN_SECONDS, RETIRED_SECONDS, Swept, sweep
from tests.unit.rag.conftest import Overtaken, World, documents
from tests.unit.rag.test_merger import Asked

pytestmark = pytest.mark.anyio

PARTS = 5
SOON = RETIRED_SECONDS - 60
AN_HOUR_ON = RETIRED_SECONDS + 60
A_DAY_ON = ORPHAN_SECONDS + 60


@pytest.fixture(autouse=True)
def dead_rows_in_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.kill.INLINE_DEAD_BYTES", 0)
    monkeypatch.setattr("spass.rag.swap._LONGEST_PAUSE", 0)


async def swept(world: World, after: int) -> Swept:
    return await sweep(world.scope.store, int(time.time()) + after, Deadline.after(60))


async def stored(world: World, index: IndexId) -> list[str]:
    return await world.scope.store.objects.keys_under(f"rag/{index}/")


async def contents(world: World, index: IndexId) -> dict[str, str]:
    found = await world.cold().documents(world.scope, index)
    return {document.id: document.text for document in found.documents}


async def test_what_a_replace_retired_goes_an_hour_later(world: World, index: IndexId) -> None:
    await world.rag.replace(world.scope, index, documents(("a", "alt")))
    await world.rag.replace(world.scope, index, documents(("b", "neu")))
    assert await swept(world, SOON) == Swept()
    assert len(await stored(world, index)) == 2 * PARTS
    assert await swept(world, AN_HOUR_ON) == Swept(retired=PARTS)
    assert len(await stored(world, index)) == PARTS
    manifest = await read_manifest(world.scope.store, index)
    assert (manifest.retired, manifest.version, manifest.revision) == ((), 2, 2)
    assert await contents(world, index) == {"b": "neu"}
    assert await swept(world, AN_HOUR_ON) == Swept()


async def test_of_a_deleted_index_nothing_stays_but_its_version(world: World, index: IndexId) -> None:
    await world.rag.append(world.scope, index, documents(("a", "alt")))
    await world.rag.delete_index(world.scope, index)
    assert await swept(world, AN_HOUR_ON) == Swept(retired=PARTS)
    assert await stored(world, index) == []
    assert (await world.rag.append(world.scope, index, documents(("a", "neu")))).version == 3


async def test_a_bitmap_that_was_replaced_goes_and_the_segment_stays(world: World, index: IndexId) -> None:
    await world.rag.append(world.scope, index, documents(*((f"d{n}", "x") for n in range(9))))
    for n in range(3):
        await world.rag.delete_document(world.scope, index, DocumentId(f"d{n}"))
    assert len(await stored(world, index)) == PARTS + 3
    assert await swept(world, AN_HOUR_ON) == Swept(retired=2)
    assert len(await stored(world, index)) == PARTS + 1
    assert await swept(world, A_DAY_ON) == Swept()
    assert set(await contents(world, index)) == {f"d{n}" for n in range(3, 9)}


async def test_what_was_never_listed_goes_a_day_later(world: World, index: IndexId) -> None:
    await world.rag.append(world.scope, index, documents(("a", "x")))
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=PARTS)), pytest.raises(Crash):
        await world.cold().replace(world.scope, index, documents(("b", "y")))
    assert len(await stored(world, index)) == 2 * PARTS
    assert await swept(world, AN_HOUR_ON) == Swept()
    assert await swept(world, A_DAY_ON) == Swept(orphans=PARTS)
    assert await contents(world, index) == {"a": "x"}


async def test_also_of_an_index_that_never_was(world: World, index: IndexId) -> None:
    await world.scope.store.objects.put(f"rag/{index}/gen_1/seg_1/ids", b"x")
    assert await swept(world, A_DAY_ON) == Swept(orphans=1)
    assert await stored(world, index) == []


async def test_an_old_object_that_was_retired_just_now_has_its_hour(world: World, index: IndexId) -> None:
    """By the clock of the sweep it is a day old; but a reader may be at it."""
    await world.rag.replace(world.scope, index, documents(("a", "alt")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.indices.now_s", lambda: int(time.time()) + A_DAY_ON)
        await world.rag.delete_index(world.scope, index)
    assert await swept(world, A_DAY_ON) == Swept()
    assert len(await stored(world, index)) == PARTS
    assert await swept(world, A_DAY_ON + RETIRED_SECONDS) == Swept(retired=PARTS)


async def test_more_than_a_manifest_remembers_is_found_by_the_day(world: World, index: IndexId) -> None:
    for n in range(70):
        await world.rag.replace(world.scope, index, documents(("a", str(n))))
    assert (await swept(world, AN_HOUR_ON)).retired == 64 * PARTS
    assert await swept(world, A_DAY_ON) == Swept(orphans=5 * PARTS)
    assert await contents(world, index) == {"a": "69"}


async def test_a_writer_in_between_loses_nothing_and_the_next_sweep_takes_the_entries_out(world: World, index: IndexId) -> None:
    await world.rag.replace(world.scope, index, documents(("a", "1")))
    await world.rag.replace(world.scope, index, documents(("a", "2")))
    rival = world.cold()

    with inject(Overtaken(lambda: rival.replace(world.scope, index, documents(("a", "3"))), operation="UpdateItem")):
        assert await swept(world, AN_HOUR_ON) == Swept(retired=PARTS)
    manifest = await read_manifest(world.scope.store, index)
    assert (len(manifest.retired), manifest.version) == (2, 3)
    assert await contents(world, index) == {"a": "3"}
    assert await swept(world, AN_HOUR_ON) == Swept(retired=PARTS)
    assert (await read_manifest(world.scope.store, index)).retired == ()


async def test_a_sweep_beside_a_write_under_way_does_not_disturb_it(world: World, index: IndexId) -> None:
    await world.rag.replace(world.scope, index, documents(("a", "1")))
    await world.rag.replace(world.scope, index, documents(("a", "2")))
    plan = Overtaken(lambda: swept(world, AN_HOUR_ON))
    with inject(plan):
        assert (await world.rag.append(world.scope, index, documents(("b", "x")))).version == 3
    assert plan.count("TransactWriteItems") == 1
    assert await contents(world, index) == {"a": "2", "b": "x"}


async def test_a_reader_whose_version_was_swept_answers_for_the_next_one(world: World, index: IndexId) -> None:
    await world.rag.replace(world.scope, index, documents(("a", "alt")))
    reader = world.cold()

    async def gone() -> None:
        await world.rag.replace(world.scope, index, documents(("a", "neu")))
        await swept(world, AN_HOUR_ON)

    with inject(Overtaken(gone, operation="GetObject")):
        answer = await reader.query(world.scope, index, "neu", 1)
    assert ([hit.text for hit in answer.results], answer.version) == (["neu"], 2)


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_sweep_that_breaks_off_is_ended_by_the_next(world: World, fault: Fault) -> None:
    at = 0
    while True:
        index = IndexId(f"{fault}-{at}")
        await world.rag.replace(world.scope, index, documents(("a", "alt")))
        await world.rag.replace(world.scope, index, documents(("a", "neu")))
        with inject(FaultPlan(fault, at=at)) as plan, contextlib.suppress(Crash, SpassError):
            await swept(world, AN_HOUR_ON)
        await swept(world, AN_HOUR_ON)
        assert (await read_manifest(world.scope.store, index)).retired == ()
        assert len(await stored(world, index)) == PARTS, f"{fault} at {at}"
        assert await contents(world, index) == {"a": "neu"}
        if len(plan.calls) <= at:
            break
        at += 1
    assert at > 4, "two queries, a listing, the objects, the entries, the listing of all"


async def test_another_tenants_indices_are_not_looked_at(world: World, index: IndexId) -> None:
    other = world.tenant("other")
    await world.rag.append(other, index, documents(("a", "x")))
    await world.rag.delete_index(other, index)
    assert await swept(world, A_DAY_ON) == Swept()
    assert len(await other.store.objects.keys_under("rag/")) == PARTS


async def test_an_index_whose_merge_never_came_is_merged_after_all(
    world: World, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.merge.MERGE_ROWS", 1)
    for n in range(4):
        await world.rag.append(world.scope, index, documents((f"d{n}", "x")))
    assert merge_due(await read_manifest(world.scope.store, index))
    jobs = Asked(world.scope.store)
    store = dataclasses.replace(world.scope.store, jobs=jobs)
    assert await sweep(store, int(time.time()), Deadline.after(60)) == Swept(merges=1)
    assert jobs.merges == [index]
    await merge(store, ObjectCache(), index, Deadline.after(3600))
    assert await sweep(store, int(time.time()), Deadline.after(60)) == Swept()
