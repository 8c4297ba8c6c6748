"""A swap takes effect once: after a conflict it plans again, and the commit marker settles a lost reply."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from spass.core.errors import ConfirmTokenInvalid, IndexNotFound, SpassError, StorageUnavailable
from spass.core.ids import IndexId
from spass.core.time import Deadline, now
from spass.rag.index.catalog import describe_index, read_indices
from spass.rag.index.manifest import Manifest, read_manifest
from spass.rag.write.swap import NextVersion, swap
from spass.store.keys import Key, used_confirm_token
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Write
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.conftest import RacingWriters, RagHarness, documents

pytestmark = pytest.mark.anyio


class CountingPlan:
    """Plans one more version, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, before: Manifest, name: str) -> NextVersion[int]:
        self.calls += 1
        after = before.next_version(Manifest("gen_1", 0, "m", 8, now(), now()))
        return NextVersion(after.version, after)


@pytest.mark.parametrize("others", [0, 1, 40])
async def test_a_swap_whose_reply_was_lost_is_found_done_after_later_swaps(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    store, plan = harness.scope.store, CountingPlan()
    transact = type(store.table).transact
    monkeypatch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)  # as if ten minutes had passed

    async def lose_reply(table: object, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.setattr(type(store.table), "transact", transact)
        await transact(store.table, writes, token=token)
        for _ in range(others):
            await swap(store, index, Deadline.after(10), CountingPlan())
        raise StorageUnavailable("lost reply")

    monkeypatch.setattr(type(store.table), "transact", lose_reply)
    assert await swap(store, index, Deadline.after(10), plan) == 1
    assert (plan.calls, (await read_manifest(store, index)).version) == (1, 1 + others)


async def test_a_swap_that_loses_a_race_plans_again(harness: RagHarness, index: IndexId) -> None:
    store, plan = harness.scope.store, CountingPlan()

    async def lose_race(before: Manifest, name: str) -> NextVersion[int]:
        if not plan.calls:
            await swap(store, index, Deadline.after(10), CountingPlan())
        return await plan(before, name)

    assert await swap(store, index, Deadline.after(10), lose_race) == 2
    assert plan.calls == 2


async def test_a_table_that_never_answers_is_unavailable_after_two_sends(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.scope.store
    sent: list[str] = []

    async def never_answer(table: object, writes: Sequence[Write], *, token: str) -> None:
        sent.append(token)
        raise StorageUnavailable("throttled")

    monkeypatch.setattr(type(store.table), "transact", never_answer)
    with pytest.raises(StorageUnavailable):
        await swap(store, index, Deadline.after(10), CountingPlan())
    assert len(sent) == 2
    assert len(set(sent)) == 1, "one transaction, sent again under its token"


async def test_an_unchanged_index_is_not_written(harness: RagHarness, index: IndexId) -> None:
    assert await swap(harness.scope.store, index, Deadline.after(10), plan_nothing) is False
    assert (await read_manifest(harness.scope.store, index)).revision == 0


@dataclass
class SingleUseParticipant:
    """Puts an item that must not exist yet, and records the answers."""

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

    async def exists(self) -> bool:
        return await self.store.table.get(self.key) is not None


async def plan_nothing(before: Manifest, name: str) -> NextVersion[bool]:
    return NextVersion(False, None)


async def test_a_participant_takes_effect_with_the_swap(harness: RagHarness, index: IndexId) -> None:
    once = SingleUseParticipant(harness.scope.store)
    assert await swap(once.store, index, Deadline.after(10), CountingPlan(), once) == 1
    assert once.answers == [1]
    assert await once.exists()


async def test_a_refused_participant_prevents_the_swap(harness: RagHarness, index: IndexId) -> None:
    once, plan = SingleUseParticipant(harness.scope.store), CountingPlan()
    await swap(once.store, index, Deadline.after(10), CountingPlan(), once)
    with pytest.raises(ConfirmTokenInvalid):
        await swap(once.store, index, Deadline.after(10), plan, once)
    manifest = await read_manifest(once.store, index)
    assert (plan.calls, manifest.version, manifest.revision) == (1, 1, 1)


async def test_a_swap_that_loses_a_race_to_the_same_participant_is_refused(harness: RagHarness, index: IndexId) -> None:
    """The conditions of the manifest and of the participant both fail: another request did the same."""
    once, plan = SingleUseParticipant(harness.scope.store), CountingPlan()
    with (
        inject(RacingWriters(lambda: swap(once.store, index, Deadline.after(10), CountingPlan(), once))),
        pytest.raises(ConfirmTokenInvalid),
    ):
        await swap(once.store, index, Deadline.after(10), plan, once)
    assert (plan.calls, (await read_manifest(once.store, index)).version) == (1, 1)


async def test_a_swap_that_loses_a_race_gives_its_new_answer_to_the_participant(harness: RagHarness, index: IndexId) -> None:
    once = SingleUseParticipant(harness.scope.store)
    with inject(RacingWriters(lambda: swap(once.store, index, Deadline.after(10), CountingPlan()))):
        assert await swap(once.store, index, Deadline.after(10), CountingPlan(), once) == 2
    assert once.answers == [1, 2]


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("has_change", [True, False], ids=["change", "no change"])
async def test_swap_and_participant_take_effect_both_or_not_at_all(
    harness: RagHarness, fault: Fault, *, has_change: bool
) -> None:
    for at in range(4):
        index, once = IndexId(f"{fault}-{at}"), SingleUseParticipant(harness.scope.store, f"{fault}-{at}-{has_change}")
        answered = False
        try:
            with inject(FaultPlan(fault, at=at)):
                await swap(once.store, index, Deadline.after(10), CountingPlan() if has_change else plan_nothing, once)
                answered = True
        except (Crash, StorageUnavailable):
            pass
        manifest = await read_manifest(once.store, index)
        exists = await once.exists()
        assert manifest.version == manifest.revision == (exists and has_change), f"{fault} at {at}"
        assert exists or not answered


async def test_a_participant_of_an_unchanged_index_creates_no_index_or_version(harness: RagHarness, index: IndexId) -> None:
    once = SingleUseParticipant(harness.scope.store)
    assert await swap(once.store, index, Deadline.after(10), plan_nothing, once) is False
    assert await once.exists()
    with pytest.raises(IndexNotFound):
        await describe_index(harness.scope, index)
    assert (await read_indices(harness.scope)).indices == ()
    assert (await harness.rag.writer.append(harness.scope, index, documents(("a", "x")))).version == 1
