"""The commit of a compaction takes effect as a whole or not at all, and loses no message."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import pytest

from spass.core.errors import InternalError, SessionArchived, SessionBusy, SessionNotFound, StorageUnavailable, storage_timeout
from spass.core.ids import JobId, SessionId, TenantId, UserId
from spass.core.messages import Role, ToolCall
from spass.core.time import timestamp
from spass.sessions import record
from spass.sessions.compaction.commit import CompactionResult, commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary, read_summary
from spass.sessions.hold import acquire_hold, renew_hold
from spass.sessions.record import StoredMessage, ToolRun, TurnRecord, load_turns
from spass.sessions.session import CreateSession, Hold, HoldKind, Session, SessionView, decode_session
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.overflow import Overflow
from spass.store.table import ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_EXISTS, Check
from spass.testing.faults import FaultPlan, inject
from tests.unit.sessions.conftest import AGENT

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

T = TypeVar("T")

pytestmark = pytest.mark.anyio

SUMMARY = Summary("Ana moves to Berlin on 3 May.", "llama-4-scout")
OWNER = "job_1"


class Compaction:
    """A harness that holds a session, commits its compaction, and reads the stored items."""

    def __init__(self, harness: "SessionsHarness") -> None:
        self.harness = harness
        self.store: TenantStore = harness.aws.for_tenant(TenantId("demo"))

    async def create_session(self, *messages: str) -> SessionId:
        session = await self.harness.create(title="Moving")
        for message in messages:
            await self.harness.say(session, message)
        return session

    async def hold(self, session: SessionId, owner: str = OWNER) -> Session:
        hold = Hold(owner, HoldKind.JOB, int(self.harness.now) + 60)
        return await acquire_hold(self.store, session, AGENT, UserId("ana"), hold, self.harness.now)

    async def live(self, session: SessionId) -> list[TurnRecord]:
        return await load_turns(self.store, session, 1)

    async def commit(
        self,
        source: Session,
        plan: CompactionPlan,
        summary: Summary = SUMMARY,
        *,
        live: Sequence[TurnRecord] | None = None,
        hold: Hold | None = None,
        owner: str = OWNER,
    ) -> CompactionResult:
        live = live if live is not None else await self.live(source.id)
        return await commit_compaction(self.store, source, live, plan, summary, owner=owner, at=self.harness.now, hold=hold)

    async def head(self, session: SessionId) -> Session:
        item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        assert item is not None
        return decode_session(item)

    async def messages(self, session: SessionId) -> list[StoredMessage]:
        return [message for turn in await self.live(session) for message in turn.messages]


@pytest.fixture
def compaction(harness: "SessionsHarness") -> Compaction:
    return Compaction(harness)


async def test_the_source_is_archived_and_its_successor_begins_with_the_summary(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two", "three")
    before = await compaction.messages(session)
    source = await compaction.hold(session)
    plan = CompactionPlan.new(session, kept_from=5)
    result = await compaction.commit(source, plan)
    archived, successor = await compaction.head(session), await compaction.head(plan.successor)
    assert await compaction.messages(session) == before, "the source lost a message"
    assert (archived.successor_session_id, archived.archived_by, archived.hold) == (successor.id, OWNER, None)
    assert (archived.message_count, archived.live_message_count) == (6, 2)
    assert archived.archived_at == archived.updated_at == timestamp(compaction.harness.now)
    assert successor == result.session
    assert (successor.parent_session_id, successor.summary_id) == (session, plan.summary)
    assert (successor.title, successor.agent, successor.user) == ("Moving", AGENT, "ana")
    assert (successor.message_count, successor.live_message_count, successor.hold) == (3, 3, None)
    opening, *kept_messages = await compaction.messages(successor.id)
    assert opening.message.role is Role.ASSISTANT
    assert opening.message.content == f"[compaction summary from session {session}] Ana moves to Berlin on 3 May."
    assert [stored.message for stored in kept_messages] == [stored.message for stored in before[4:]]
    assert [stored.created_at for stored in kept_messages] == [stored.created_at for stored in before[4:]]
    assert [stored.seq for stored in kept_messages] == [2, 3]
    assert not {stored.id for stored in kept_messages} & {stored.id for stored in before}
    summary = await read_summary(compaction.store, successor.id, plan.summary)
    assert summary is not None
    assert summary == result.summary
    assert (summary.first_seq, summary.last_seq, summary.text, summary.source) == (1, 4, SUMMARY.text, session)


@pytest.mark.parametrize("mask", [False, True])
async def test_a_successor_has_the_options_of_its_source(compaction: Compaction, mask: bool) -> None:
    options = CreateSession(compact_strategy="manual", compact_keep_last_n=3, compact_observation_mask=mask)
    session = await compaction.harness.create_with(options)
    await compaction.harness.say(session, "one")
    successor = (await compaction.commit(await compaction.hold(session), CompactionPlan.new(session, kept_from=3))).session
    assert (successor.compact_strategy, successor.compact_keep_last_n, successor.compact_observation_mask) == ("manual", 3, mask)


async def test_list_entries_equal_the_heads_of_both_sessions(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two")
    plan = CompactionPlan.new(session, kept_from=5)
    await compaction.commit(await compaction.hold(session), plan)
    page = await compaction.harness.sessions.page(compaction.harness.scope(), AGENT, None, 10)
    assert page.sessions == [SessionView.of(await compaction.head(member)) for member in (plan.successor, session)]


async def test_a_successor_can_start_with_the_hold_of_a_turn(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    source = await compaction.hold(session, "turn_1")
    plan = CompactionPlan.new(session, kept_from=3)
    hold = Hold("turn_1", HoldKind.TURN, int(compaction.harness.now) + 60)
    result = await compaction.commit(source, plan, owner="turn_1", hold=hold)
    assert result.session.hold == (await compaction.head(plan.successor)).hold == hold


async def test_a_turn_added_after_the_plan_is_kept(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    plan = CompactionPlan.new(session, kept_from=3)
    await compaction.harness.say(session, "two")
    await compaction.commit(await compaction.hold(session), plan)
    assert [stored.message.content for stored in await compaction.messages(plan.successor)][1:] == ["two", "yes"]


async def test_a_repeated_commit_returns_the_first_result(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two")
    source, live = await compaction.hold(session), await compaction.live(session)
    plan = CompactionPlan.new(session, kept_from=3)
    first = await compaction.commit(source, plan, live=live)
    compaction.harness.now += 5
    repeated = await compaction.commit(source, plan, live=live)
    assert repeated == first
    assert len(compaction.harness.stored_items()) == 2 + 2 + 1 + 1 + 2, "heads, turns, first item, summary, list entries"


async def test_only_one_of_two_plans_for_a_session_is_committed(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two")
    source, live = await compaction.hold(session), await compaction.live(session)
    first = await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    before = compaction.harness.stored_items()
    with pytest.raises(SessionArchived) as refusal:
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert refusal.value.details == {"successor_session_id": first.session.id}
    assert compaction.harness.stored_items() == before


async def test_a_commit_without_the_hold_changes_nothing(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two")
    source = await compaction.hold(session)
    compaction.harness.now += 60
    await compaction.hold(session, "job_2")
    before = compaction.harness.stored_items()
    with pytest.raises(SessionBusy):
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3))
    assert compaction.harness.stored_items() == before


async def test_a_session_that_grew_after_the_read_is_not_compacted(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    source, live = await compaction.hold(session), await compaction.live(session)
    compaction.harness.now += 60
    await compaction.harness.say(session, "two")
    await compaction.hold(session)
    with pytest.raises(SessionBusy):
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert (await compaction.head(session)).archived_at is None


async def test_a_deleted_session_gets_no_successor(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    source, live = await compaction.hold(session), await compaction.live(session)
    compaction.harness.now += 60
    await compaction.harness.sessions.delete(compaction.harness.scope(), AGENT, session)
    with pytest.raises(SessionNotFound):
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert compaction.harness.stored_items() == []


async def test_a_commit_without_all_live_messages_is_refused(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two", "three")
    source, live = await compaction.hold(session), await compaction.live(session)
    for incomplete in (live[1:], live[:-1], [live[0], live[2]], []):
        with pytest.raises(SessionBusy):
            await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=incomplete)
    for kept_from in (1, 8):
        with pytest.raises(InternalError):
            await compaction.commit(source, CompactionPlan.new(session, kept_from=kept_from), live=live)
    assert (await compaction.head(session)).archived_at is None


async def test_a_failed_condition_of_an_effect_refuses_the_whole_commit(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    source, live = await compaction.hold(session), await compaction.live(session)
    job_exists = Check(keys.job(compaction.store.tenant, JobId(OWNER)), ITEM_EXISTS)
    before = compaction.harness.stored_items()
    with pytest.raises(SessionBusy):
        await commit_compaction(
            compaction.store,
            source,
            live,
            CompactionPlan.new(session, kept_from=3),
            SUMMARY,
            owner=OWNER,
            at=compaction.harness.now,
            with_effect=lambda _: [job_exists],
        )
    assert compaction.harness.stored_items() == before


async def test_large_kept_messages_overflow_and_a_late_commit_leaves_no_body(
    compaction: Compaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    session = await compaction.create_session("one", "two")
    source, live = await compaction.hold(session), await compaction.live(session)
    bodies = compaction.harness.stored_objects()
    result = await compaction.commit(source, plan := CompactionPlan.new(session, kept_from=3), live=live)
    compaction.harness.now += 1
    assert await compaction.commit(source, plan, live=live) == result, "a repeated commit changed the first result"
    with pytest.raises(SessionArchived):
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert await compaction.live(plan.successor) == [result.first]
    assert len(compaction.harness.stored_objects()) == len(bodies) + 1


async def test_kept_tool_calls_have_their_durations(compaction: Compaction) -> None:
    session = await compaction.create_session("one", "two")
    source, (first, second) = await compaction.hold(session), await compaction.live(session)
    user, answer = second.messages
    tool_call_message = replace(answer, message=replace(answer.message, tool_calls=(ToolCall("call_2", "calculator", "{}"),)))
    live = [
        replace(first, tools=(ToolRun("call_1", "calculator", 5),)),
        replace(second, messages=(user, tool_call_message), tools=(ToolRun("call_2", "calculator", 7),)),
    ]
    result = await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert result.first.tools == (ToolRun("call_2", "calculator", 7),)


async def test_after_a_commit_the_owner_can_neither_renew_nor_acquire_the_source(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    await compaction.commit(await compaction.hold(session), CompactionPlan.new(session, kept_from=3))
    with pytest.raises(ConditionFailed):
        await renew_hold(compaction.store, session, OWNER, compaction.harness.now)
    with pytest.raises(SessionArchived):
        await compaction.hold(session)


@dataclass(slots=True)
class LateCommit(FaultPlan):
    """A fault that delays commits: they get no reply, and the test runs them later from ``pending``."""

    pending: list[PendingCall[object]] = field(default_factory=list)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation != "TransactWriteItems":
            return await FaultPlan.around(self, call, run)
        self.pending.append(run)
        raise storage_timeout()


async def test_an_abandoned_commit_cannot_take_effect_later(compaction: Compaction) -> None:
    session = await compaction.create_session("one")
    source, live = await compaction.hold(session), await compaction.live(session)
    with inject(LateCommit()) as plan, pytest.raises(StorageUnavailable):
        await compaction.commit(source, CompactionPlan.new(session, kept_from=3), live=live)
    assert isinstance(plan, LateCommit)
    assert len(plan.pending) == 2
    assert (await compaction.head(session)).hold is None
    for late_commit in plan.pending:
        with pytest.raises(TransactionFailed):
            await late_commit()
    assert (await compaction.head(session)).archived_at is None
