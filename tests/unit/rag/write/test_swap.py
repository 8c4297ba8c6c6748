"""A swap takes place once: conflicts are planned anew, a lost reply is settled by the marker of the transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from spass.aws.clients import TenantStore
from spass.aws.keys import Key, rag_manifest, used_confirm_token
from spass.aws.writes import ITEM_ABSENT, Put, Update, Write
from spass.core.errors import ConfirmTokenInvalid, IndexNotFound, SpassError, StorageUnavailable
from spass.core.ids import IndexId
from spass.core.time import Deadline, now
from spass.rag.index.catalog import describe_index, read_indices
from spass.rag.index.manifest import Manifest, read_manifest
from spass.rag.write.swap import NextVersion, swap
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents

pytestmark = pytest.mark.anyio


class CountingPlan:
    """Adds one version, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self, before: Manifest, name: str) -> NextVersion[int]:
        self.made += 1
        after = before.next_version(Manifest("gen_1", 0, "m", 8, now(), now()))
        return NextVersion(after.version, after)


@pytest.mark.parametrize("others", [0, 1, 40])
async def test_a_swap_whose_reply_was_lost_is_known_as_done_whatever_came_after(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    store, plan = harness.scope.store, CountingPlan()
    transact = type(store.table).transact
    monkeypatch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)  # as if ten minutes had passed

    async def lost(table: object, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.setattr(type(store.table), "transact", transact)
        await transact(store.table, writes, token=token)
        for _ in range(others):
            await swap(store, index, Deadline.after(10), CountingPlan())
        raise StorageUnavailable("lost")

    monkeypatch.setattr(type(store.table), "transact", lost)
    assert await swap(store, index, Deadline.after(10), plan) == 1
    assert (plan.made, (await read_manifest(store, index)).version) == (1, 1 + others)


async def test_a_plan_that_another_writer_overtook_is_made_anew(harness: RagHarness, index: IndexId) -> None:
    store, plan = harness.scope.store, CountingPlan()

    async def overtaken(before: Manifest, name: str) -> NextVersion[int]:
        if not plan.made:
            await swap(store, index, Deadline.after(10), CountingPlan())
        return await plan(before, name)

    assert await swap(store, index, Deadline.after(10), overtaken) == 2
    assert plan.made == 2


async def test_a_storage_that_never_answers_is_said_to_be_unavailable(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.scope.store
    sent: list[str] = []

    async def deaf(table: object, writes: Sequence[Write], *, token: str) -> None:
        sent.append(token)
        raise StorageUnavailable("throttled")

    monkeypatch.setattr(type(store.table), "transact", deaf)
    with pytest.raises(StorageUnavailable):
        await swap(store, index, Deadline.after(10), CountingPlan())
    assert len(sent) == 2
    assert len(set(sent)) == 1, "one transaction, sent again under its token"


async def test_an_unchanged_index_is_not_written(harness: RagHarness, index: IndexId) -> None:
    assert await swap(harness.scope.store, index, Deadline.after(10), nothing) is False
    assert (await read_manifest(harness.scope.store, index)).revision == 0


@dataclass
class OnceCompanion:
    """A companion that takes effect once: an item that must not be there yet. It remembers what it was given."""

    store: TenantStore
    name: str = "once"
    answers: list[object] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return used_confirm_token(self.store.tenant, self.name)

    async def writes(self, answer: object, /) -> Sequence[Write]:
        self.answers.append(answer)
        return [Put(self.key, {"answer": str(answer)}, ITEM_ABSENT)]

    def refusal(self) -> SpassError:
        return ConfirmTokenInvalid("used up")

    async def took_place(self) -> bool:
        return await self.store.table.get(self.key) is not None


async def nothing(before: Manifest, name: str) -> NextVersion[bool]:
    return NextVersion(False, None)


async def test_a_companion_takes_effect_with_the_swap(harness: RagHarness, index: IndexId) -> None:
    once = OnceCompanion(harness.scope.store)
    assert await swap(once.store, index, Deadline.after(10), CountingPlan(), once) == 1
    assert once.answers == [1]
    assert await once.took_place()


async def test_a_companion_that_is_refused_takes_the_swap_with_it(harness: RagHarness, index: IndexId) -> None:
    once, plan = OnceCompanion(harness.scope.store), CountingPlan()
    await swap(once.store, index, Deadline.after(10), CountingPlan(), once)
    with pytest.raises(ConfirmTokenInvalid):
        await swap(once.store, index, Deadline.after(10), plan, once)
    manifest = await read_manifest(once.store, index)
    assert (plan.made, manifest.version, manifest.revision) == (1, 1, 1)


async def test_who_is_overtaken_by_its_own_companion_s_other_use_is_refused(harness: RagHarness, index: IndexId) -> None:
    """The manifest and the companion both say no: another one has carried out the same."""
    once, plan = OnceCompanion(harness.scope.store), CountingPlan()
    with (
        inject(RacingWriters(lambda: swap(once.store, index, Deadline.after(10), CountingPlan(), once))),
        pytest.raises(ConfirmTokenInvalid),
    ):
        await swap(once.store, index, Deadline.after(10), plan, once)
    assert (plan.made, (await read_manifest(once.store, index)).version) == (1, 1)


async def test_who_is_overtaken_by_others_asks_its_companion_again(harness: RagHarness, index: IndexId) -> None:
    once = OnceCompanion(harness.scope.store)
    with inject(RacingWriters(lambda: swap(once.store, index, Deadline.after(10), CountingPlan()))):
        assert await swap(once.store, index, Deadline.after(10), CountingPlan(), once) == 2
    assert once.answers == [1, 2]


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("changing", [True, False], ids=["a change", "no change"])
async def test_swap_and_companion_take_place_both_or_not_at_all(harness: RagHarness, fault: Fault, *, changing: bool) -> None:
    for at in range(4):
        index, once = IndexId(f"{fault}-{at}"), OnceCompanion(harness.scope.store, f"{fault}-{at}-{changing}")
        answered = False
        try:
            with inject(FaultPlan(fault, at=at)):
                await swap(once.store, index, Deadline.after(10), CountingPlan() if changing else nothing, once)
                answered = True
        except (Crash, StorageUnavailable):
            pass
        manifest = await read_manifest(once.store, index)
        took_place = await once.took_place()
        assert manifest.version == manifest.revision == (took_place and changing), f"{fault} at {at}"
        assert took_place or not answered


async def test_a_companion_of_no_change_is_no_version_and_makes_no_index(harness: RagHarness, index: IndexId) -> None:
    once = OnceCompanion(harness.scope.store)
    assert await swap(once.store, index, Deadline.after(10), nothing, once) is False
    assert await once.took_place()
    with pytest.raises(IndexNotFound):
        await describe_index(harness.scope, index)
    assert (await read_indices(harness.scope)).indices == ()
    assert (await harness.rag.writer.append(harness.scope, index, documents(("a", "x")))).version == 1


async def test_a_manifest_from_before_there_were_revisions_is_followed(harness: RagHarness, index: IndexId) -> None:
    store = harness.scope.store
    await swap(store, index, Deadline.after(10), CountingPlan())
    await store.table.write(Update(rag_manifest(store.tenant, index), remove=("revision",)))
    with inject(RacingWriters(lambda: swap(store, index, Deadline.after(10), CountingPlan()))):
        assert await swap(store, index, Deadline.after(10), CountingPlan()) == 3
    assert (await read_manifest(store, index)).revision == 2
