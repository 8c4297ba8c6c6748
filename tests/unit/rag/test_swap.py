"""A swap takes place once: conflicts are planned anew, a lost reply is settled by reading whose swap it was."""

from collections.abc import Sequence

import pytest

from spass.aws.table import Write
from spass.core.errors import StorageUnavailable
from spass.core.ids import IndexId
from spass.core.time import Deadline, now
from spass.rag.manifest import Manifest
from spass.rag.swap import Step, read_manifest, swap
from tests.unit.rag.conftest import World

pytestmark = pytest.mark.anyio


class Plan:
    """Adds one version, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self, before: Manifest, name: str) -> Step[int]:
        self.made += 1
        after = before.followed_by(Manifest("gen_1", 0, "m", 8, now(), now()), swap=name, retired=[], at=0)
        return Step(after.version, after)


async def test_a_swap_whose_reply_was_lost_is_known_as_done_even_when_others_came_after(
    world: World, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = world.scope.store, Plan()
    transact = type(store.table).transact

    async def lost(table: object, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.undo()
        await transact(store.table, writes, token=token)
        for _ in range(5):
            await swap(store, index, Deadline.after(10), Plan())
        raise StorageUnavailable("lost")

    monkeypatch.setattr(type(store.table), "transact", lost)
    assert await swap(store, index, Deadline.after(10), plan) == 1
    assert (plan.made, (await read_manifest(store, index)).version) == (1, 6)


async def test_a_plan_that_another_writer_overtook_is_made_anew(world: World, index: IndexId) -> None:
    store, plan = world.scope.store, Plan()

    async def overtaken(before: Manifest, name: str) -> Step[int]:
        if not plan.made:
            await swap(store, index, Deadline.after(10), Plan())
        return await plan(before, name)

    assert await swap(store, index, Deadline.after(10), overtaken) == 2
    assert plan.made == 2


async def test_a_storage_that_never_answers_is_said_to_be_unavailable(
    world: World, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.scope.store
    sent: list[str] = []

    async def deaf(table: object, writes: Sequence[Write], *, token: str) -> None:
        sent.append(token)
        raise StorageUnavailable("throttled")

    monkeypatch.setattr(type(store.table), "transact", deaf)
    with pytest.raises(StorageUnavailable):
        await swap(store, index, Deadline.after(10), Plan())
    assert len(sent) == 3
    assert len(set(sent)) == 1, "one transaction, sent again under its token"


async def test_an_unchanged_index_is_not_written(world: World, index: IndexId) -> None:
    async def nothing(before: Manifest, name: str) -> Step[bool]:
        return Step(False, None)

    assert await swap(world.scope.store, index, Deadline.after(10), nothing) is False
    assert (await read_manifest(world.scope.store, index)).version == 0
