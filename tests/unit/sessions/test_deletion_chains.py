"""Delete sessions of a compaction chain. Other sessions do not change, and a failed delete or commit has no partial effect."""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from spass.core.errors import CompactionInProgress, SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import SessionId, TenantId
from spass.core.time import Deadline
from spass.sessions import record
from spass.sessions.compaction.jobs import CompactionJobs
from spass.sessions.lineage import read_chain
from spass.sessions.lineage_search import SessionLineageSearcher
from spass.sessions.record import TurnRecord, load_turns
from spass.sessions.session import Session, SessionView
from spass.sessions.sweep import UNCOMMITTED_SECONDS, sweep_bodies
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.unit.sessions.conftest import SessionsHarness
from tests.unit.sessions.session_chains import AGENT, START, ChainBuilder, memory_store, plain_turn

pytestmark = pytest.mark.anyio
T = TypeVar("T")


@pytest.fixture
def chains() -> Iterator[ChainBuilder]:
    with memory_store() as aws:
        yield ChainBuilder(aws.for_tenant(TenantId("demo")))


async def read_stored(chains: ChainBuilder, session: SessionId) -> tuple[list[dict[str, object]], list[bytes]]:
    """Return all items and objects of a session."""
    items = await chains.store.table.query(keys.session_partition(chains.store.tenant, session))
    bodies = await chains.store.objects.list_keys(f"sessions/{session}/")
    return [dict(item) for item in items], [await chains.store.objects.get(body) for body in bodies]


async def listed_sessions(chains: ChainBuilder) -> set[str]:
    partition = keys.user_sessions_partition(chains.store.tenant, chains.user, AGENT)
    return {str(item["id"]) for item in await chains.store.table.query(partition)}


async def assert_only_the_head_remains(chains: ChainBuilder, session: SessionId) -> None:
    ((head,), bodies) = await read_stored(chains, session)
    assert head["removed"] is True
    assert "title" not in head
    assert bodies == []
    assert session not in await listed_sessions(chains)


@pytest.mark.parametrize("overflow", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("order", [[0], [1], [3], [1, 2], [3, 0, 2, 1]], ids=str)
async def test_deleting_a_member_does_not_change_the_others(
    chains: ChainBuilder, order: list[int], overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overflow:
        monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    members = await chains.chain(4, keep=2)
    remaining = dict(enumerate(members))
    for at in order:
        target = remaining.pop(at)
        before = {member: await read_stored(chains, member) for member in remaining.values()}
        await chains.delete(target)
        await assert_only_the_head_remains(chains, target)
        assert {member: await read_stored(chains, member) for member in remaining.values()} == before
        assert await listed_sessions(chains) == set(remaining.values())
        with pytest.raises(SessionNotFound):
            await chains.delete(target)
        for at_member, member in remaining.items():
            lineage = (await read_chain(chains.scope, AGENT, member)).to_dict()
            earlier, later = members[:at_member][::-1], members[at_member + 1 :]
            for shown, expected in ((lineage["backward"], earlier), (lineage["forward"], later)):
                assert isinstance(shown, list)
                assert [(one["id"], one.get("deleted", False)) for one in shown] == [
                    (other, other not in remaining.values()) for other in expected
                ]


@pytest.mark.parametrize("target", [0, 1, 2])
async def test_the_other_members_of_a_chain_can_be_used_and_deleted(chains: ChainBuilder, target: int) -> None:
    members = await chains.chain(3)
    await chains.delete(members[target])
    if target < 2:
        await chains.say(members[2], plain_turn("and now?"))
        members.append(await chains.compact(members[2], "more"))
        result = await SessionLineageSearcher().search(chains.within(members[3]), "question", 20)
        assert {one.session for one in result.results} == {member for member in members[:3] if member != members[target]}
    for member in members:
        with contextlib.suppress(SessionNotFound):
            await chains.delete(member)
        await assert_only_the_head_remains(chains, member)
    assert await listed_sessions(chains) == set()


async def test_a_session_held_by_a_job_cannot_be_deleted_before_the_hold_expires(chains: ChainBuilder) -> None:
    session = await chains.session(plain_turn("hello"))
    source, live = await chains.hold(session, "job_7"), await load_turns(chains.store, session, 1)
    with pytest.raises(CompactionInProgress) as refusal:
        await chains.delete(session)
    assert refusal.value.details == {"job_id": "job_7"}
    chains.now += LEASE_SECONDS + 1
    await chains.delete(session)
    with pytest.raises(SessionNotFound):
        await chains.commit(source, owner="job_7", live=live)
    assert await read_stored(chains, session) == ([], [])
    assert await listed_sessions(chains) == set()


async def create_held_session(chains: ChainBuilder) -> tuple[Session, list[TurnRecord]]:
    """Return a session that a job holds, and its turns."""
    session = await chains.hold(await chains.session(plain_turn("hello")))
    return session, await load_turns(chains.store, session.id, 1)


async def delete_all_sessions(chains: ChainBuilder) -> None:
    for remaining in await listed_sessions(chains):
        await chains.delete(SessionId(remaining))


async def run(operation: Awaitable[object]) -> str:
    """Await ``operation``. Return "done", the code of its error, or "crash"."""
    try:
        await operation
    except (SpassError, Crash) as error:
        return error.code if isinstance(error, SpassError) else "crash"
    return "done"


async def check_source_state(chains: ChainBuilder, source: SessionId) -> str:
    """Check that the source is unchanged, compacted, deleted, or compacted and deleted. Return which of them it is."""
    items, _ = await read_stored(chains, source)
    heads = [item for item in items if item["sk"] == "HEAD"]
    successor = heads[0].get("successor_session_id") if heads else None
    deleted = not heads or "deleted_at" in heads[0]
    assert (source in await listed_sessions(chains)) is not deleted
    if successor is None:
        assert await listed_sessions(chains) <= {source}, "a session that was not compacted has a successor"
        if not deleted:
            assert await chains.texts(source) == ["hello", "yes"]
        return "deleted" if deleted else "unchanged"
    successor_id = SessionId(str(successor))
    assert await chains.texts(successor_id) == [f"[compaction summary from session {source}] what was said"]
    assert successor_id in await listed_sessions(chains)
    chain = await read_chain(chains.scope, AGENT, successor_id)
    assert [member.to_dict() for member in chain.backward] == [
        {"id": source, "deleted": True} if deleted else SessionView.of(await chains.head(source)).to_dict()
    ]
    assert [summary.text for summary in chain.summaries] == ["what was said"]
    return "both" if deleted else "compacted"


@pytest.mark.parametrize("fault", list(Fault))
async def test_the_next_delete_completes_a_delete_in_which_any_call_failed(
    chains: ChainBuilder, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def three_sessions() -> list[SessionId]:
        monkeypatch.setattr(record, "BODY", Overflow("body", 10))
        members = await chains.chain(3, keep=2)
        monkeypatch.undo()
        return members

    sample = (await three_sessions())[1]
    with inject(FaultPlan()) as plan:
        await chains.delete(sample)
    call_count = len(plan.calls)
    for point in sampled(range(call_count), 3, fault):
        before, target, after = await three_sessions()
        others = {member: await read_stored(chains, member) for member in (before, after)}
        with inject(FaultPlan(fault, at=point)), contextlib.suppress(Crash, StorageUnavailable):
            await chains.delete(target)
        visible = target in await listed_sessions(chains)
        chain = await read_chain(chains.scope, AGENT, after)
        assert [isinstance(member, SessionView) for member in chain.backward] == [visible, True]
        assert len(chain.summaries) == 1 + visible
        if visible:
            assert len(await chains.texts(target)) == 5, "the delete took effect partially"
        with contextlib.suppress(SessionNotFound):
            await chains.delete(target)
        await assert_only_the_head_remains(chains, target)
        assert {member: await read_stored(chains, member) for member in (before, after)} == others
    assert call_count >= 6


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_delete_after_a_failed_commit_removes_the_whole_session(
    chains: ChainBuilder, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    sample, live = await create_held_session(chains)
    with inject(FaultPlan()) as plan:
        await chains.commit(sample, live=live)
    await delete_all_sessions(chains)
    call_count, final_states = len(plan.calls), Counter[str]()
    for point in range(call_count):
        source, live = await create_held_session(chains)
        with inject(FaultPlan(fault, at=point)):
            result = await run(chains.commit(source, live=live))
        chains.now += LEASE_SECONDS + 1
        assert await check_source_state(chains, source.id) in {"unchanged", "compacted"}
        await chains.delete(source.id)
        final_state = await check_source_state(chains, source.id)
        assert final_state == "both" or result != "done"
        with pytest.raises(SessionNotFound):
            await chains.hold(source.id)
        final_states[final_state] += 1
        await delete_all_sessions(chains)
    assert call_count == 2, "a commit stores the body and sends one transaction"
    assert set(final_states) <= {"deleted", "both"}


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_session_whose_delete_failed_is_not_compacted(chains: ChainBuilder, fault: Fault) -> None:
    sample, _ = await create_held_session(chains)
    chains.now += LEASE_SECONDS + 1
    with inject(FaultPlan()) as plan:
        await chains.delete(sample.id)
    for point in sampled(range(len(plan.calls)), 3, fault):
        source, live = await create_held_session(chains)
        chains.now += LEASE_SECONDS + 1
        with inject(FaultPlan(fault, at=point)):
            await run(chains.delete(source.id))
        result = await run(chains.commit(source, live=live))
        final_state = await check_source_state(chains, source.id)
        assert (final_state, result) in {("deleted", "session_not_found"), ("compacted", "done")}
        assert final_state == "deleted" or point <= 1, "the delete reads the head, and then marks it"
        await delete_all_sessions(chains)


async def test_the_sweep_removes_only_uncommitted_bodies_of_a_chain(
    chains: ChainBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    members = await chains.chain(3, keep=2)
    texts = {member: await chains.texts(member) for member in members}
    keys_before = await chains.store.objects.list_keys("sessions/")
    source, live = await chains.hold(members[2]), await load_turns(chains.store, members[2], 1)
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=1)), pytest.raises(Crash):
        await chains.commit(source, live=live)
    (orphan,) = set(await chains.store.objects.list_keys("sessions/")) - set(keys_before)
    assert orphan.split("/")[1] not in members, "the orphan belongs to a committed session"
    now = int(START)
    assert await sweep_bodies(chains.store, now + UNCOMMITTED_SECONDS - 60, Deadline.after(60)) == 0
    assert await sweep_bodies(chains.store, now + UNCOMMITTED_SECONDS + 60, Deadline.after(60)) == 1
    assert await chains.store.objects.list_keys("sessions/") == keys_before
    assert {member: await chains.texts(member) for member in members} == texts


@dataclass(slots=True)
class DeleteBeforeFirstRead(FaultPlan):
    """A fault that deletes the session before its first body is read."""

    delete: Callable[[], Awaitable[None]] = field(kw_only=True)
    done: bool = False

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "GetObject" and not self.done:
            self.done = True
            with inject(FaultPlan()):
                await self.delete()
        return await run()


async def test_a_compaction_requested_during_a_delete_is_refused(chains: ChainBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    session = await chains.session(plain_turn("hello"))
    jobs = CompactionJobs(lambda: chains.now)
    with inject(DeleteBeforeFirstRead(delete=lambda: chains.delete(session))), pytest.raises(SessionBusy):
        await jobs.start(chains.scope, AGENT, session, fallback_model="scripted")
    with pytest.raises(SessionNotFound):
        await jobs.start(chains.scope, AGENT, session, fallback_model="scripted")
    assert await read_stored(chains, session) == ([], [])


async def test_a_turn_whose_hold_expired_and_whose_session_was_deleted_is_refused(
    harness: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    session = await harness.create()
    await harness.say(session, "hello")

    async def expire_hold_and_delete() -> None:
        harness.now += LEASE_SECONDS + 1
        await harness.sessions.delete(harness.scope(), AGENT, session)

    with inject(DeleteBeforeFirstRead(delete=expire_hold_and_delete)), pytest.raises(SessionBusy):
        await harness.say(session, "again")
    with pytest.raises(SessionNotFound):
        await harness.say(session, "again")
