"""Race a compaction and two deletes on one session, with faults, under many seeds.

Each operation takes effect completely or not at all. If it was answered with success, it took effect.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from spass.calls.scope import Scope
from spass.core.errors import SessionNotFound, SpassError
from spass.core.ids import MessageId, SessionId, TenantId, new_id
from spass.core.messages import FinishReason, TokenUsage
from spass.core.time import timestamp
from spass.sessions import record
from spass.sessions.compaction.commit import CompactionResult, commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary
from spass.sessions.deletion import delete_session
from spass.sessions.hold import acquire_hold
from spass.sessions.lineage import read_chain
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Hold, HoldKind, Session, decode_session
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.overflow import Overflow
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.simulated.schedule import MANY_FAULTS, NO_FAULTS, FaultRates, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded
from tests.unit.sessions.session_chains import AGENT, USER, ChainBuilder, plain_turn

HOLD_SECONDS = 60
RACE_FAULTS = FaultRates({fault: 4 * odds for fault, odds in MANY_FAULTS.odds.items()})
"""Faults are four times as frequent as in other tests, because a race has few calls."""


@dataclass(slots=True)
class Race:
    """One session, the tasks that work on it, and their answers: a count of successful deletes and the results of compactions."""

    schedule: Schedule
    store: TenantStore
    session: SessionId = field(default_factory=lambda: SessionId(new_id("ses")))
    delete_count: int = 0
    compactions: list[CompactionResult] = field(default_factory=list)

    async def store_session(self) -> None:
        at = timestamp(self.schedule.now())
        head = Session(self.session, AGENT, USER, "a title", at, at, "manual", 0, True, next_seq=3)
        messages = tuple(
            StoredMessage(MessageId(new_id("msg")), n, at, message) for n, message in enumerate(plain_turn("hello"), 1)
        )
        turn = TurnRecord(new_id("turn"), messages, TokenUsage(), turns=1, finish_reason=FinishReason.STOP)
        table, tenant = self.store.table, self.store.tenant
        await table.write(Put(keys.session_turn(tenant, self.session, 1), await store_body(self.store, self.session, turn)))
        await table.write(Put(keys.session_head(tenant, self.session), head.attributes()))
        await table.write(Put(keys.user_session(tenant, USER, AGENT, self.session), head.entry()))

    async def compact(self) -> None:
        """Run a job: acquire the hold, wait (sometimes until the hold has expired) and commit. Retry with the same plan if the
        job fails or gets no reply."""
        await self.wait(5)
        owner, plan = new_id("job"), CompactionPlan.new(self.session, 3)
        for _ in range(3):
            # ``ObjectMissing``: if its hold has expired, the job may read a session that is being deleted.
            with inject(self.schedule.process()), suppress(SpassError, Crash, ObjectMissing):
                now = self.schedule.now()
                hold = Hold(owner, HoldKind.JOB, int(now) + HOLD_SECONDS)
                source = await acquire_hold(self.store, self.session, AGENT, USER, hold, now)
                turns = await load_turns(self.store, self.session, 1)
                await self.wait(2 * HOLD_SECONDS)
                result = await commit_compaction(
                    self.store, source, turns, plan, Summary("what was said", "scripted"), owner=owner, at=self.schedule.now()
                )
                self.compactions.append(result)
                return
            await self.wait(5)

    async def delete(self) -> None:
        for _ in range(self.schedule.rng.choice([1, 3])):
            await self.wait(HOLD_SECONDS)
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await delete_session(self.store, self.session, AGENT, USER, self.schedule.now())
                self.delete_count += 1

    async def wait(self, max_seconds: float) -> None:
        await asyncio.sleep(self.schedule.random_delay(max_seconds))

    async def head(self, session: SessionId) -> Session | None:
        item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        return decode_session(item) if item is not None else None

    async def texts(self, session: SessionId) -> list[str]:
        """Return the texts of the session's messages."""
        return [stored.message.content for turn in await load_turns(self.store, session, 1) for stored in turn.messages]

    @property
    def scope(self) -> Scope:
        return ChainBuilder(self.store).scope

    async def remaining_keys(self, session: SessionId) -> list[str]:
        """Return the keys of the items and objects of a session, without its head."""
        items = await self.store.table.query(keys.session_partition(self.store.tenant, session))
        bodies = await self.store.objects.list_keys(f"sessions/{session}/")
        return [str(item["sk"]) for item in items if item["sk"] != "HEAD"] + bodies

    async def session_ids(self) -> set[str]:
        """Return the ids in the user's list of sessions."""
        partition = keys.user_sessions_partition(self.store.tenant, USER, AGENT)
        return {str(item["id"]) for item in await self.store.table.query(partition)}


async def check_answers(race: Race) -> str:
    """Assert that the answers agree with the stored items, and return the outcome, e.g. ``deleted compacted``."""
    source = await race.head(race.session)
    is_deleted = source is None or source.deleted_at is not None
    successor = source.successor_session_id if source is not None else None
    assert is_deleted or race.delete_count == 0, "a delete succeeded, but the session exists"
    assert {result.session.id for result in race.compactions} <= {successor}, "a compaction succeeded without a successor"
    expected = {None if is_deleted else race.session, successor} - {None}
    assert await race.session_ids() == expected
    if not is_deleted:
        assert await race.texts(race.session) == ["hello", "yes"]
    elif race.delete_count:
        assert await race.remaining_keys(race.session) == []
    if successor is not None:
        await check_successor(race, successor)
    return ("deleted " if is_deleted else "") + ("compacted" if successor is not None else "")


async def check_successor(race: Race, successor: SessionId) -> None:
    """Assert that the successor has the summary as its only message, and that its lineage leads to the session."""
    head = await race.head(successor)
    assert head is not None
    assert (head.parent_session_id, head.deleted_at, head.hold) == (race.session, None, None)
    assert await race.texts(successor) == [f"[compaction summary from session {race.session}] what was said"]
    chain = await read_chain(race.scope, AGENT, successor)
    assert [member.id for member in chain.backward] == [race.session]
    assert [summary.id for summary in chain.summaries] == [head.summary_id]


async def tell_race(schedule: Schedule) -> str:
    race = Race(schedule, MemoryAws(clock=schedule.now).for_tenant(TenantId("demo")))
    with inject(schedule.process()):
        fault_rates, schedule.fault_rates = schedule.fault_rates, NO_FAULTS
        await race.store_session()
        schedule.fault_rates = fault_rates
        await asyncio.gather(race.compact(), race.delete(), race.delete())
        await schedule.calm()
        outcome = await check_answers(race)
        # All holds expire. A delete without faults must then finish what the earlier calls began.
        await asyncio.sleep(10 * HOLD_SECONDS)
        with suppress(SessionNotFound):
            await delete_session(race.store, race.session, AGENT, USER, schedule.now())
        race.delete_count += 1
        await check_answers(race)
        assert (await race.head(race.session) is not None) is ("compacted" in outcome), (
            "a deleted session keeps its head exactly if it has a successor"
        )
    return outcome


@pytest.fixture(autouse=True)
def store_bodies_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))


def run_race(seed: int) -> dict[str, int]:
    schedule = Schedule(seed, RACE_FAULTS)
    return {run_schedule(schedule, lambda: tell_race(schedule)): 1}


@seeded(20, in_soak=5000)
def test_racing_compactions_and_deletes_take_effect_completely_or_not_at_all(
    seeds: Sequence[int], record_property: Record
) -> None:
    outcomes = run_seeds(seeds, run_race, record_property)
    assert len(outcomes) >= 3 or len(seeds) == 1, outcomes
