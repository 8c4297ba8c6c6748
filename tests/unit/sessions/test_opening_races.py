"""Race chats that share two names with compactions and deletes of their sessions, with faults, under many seeds.

In the end each name belongs to the newest session of one chain, and each message was recorded once or not at all.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.calls.scope import Scope
from spass.core.errors import SessionNotFound, SpassError
from spass.core.events import Event
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId, new_id
from spass.core.messages import Message, Role
from spass.journal.head import StreamState
from spass.sessions.compaction.commit import commit_compaction
from spass.sessions.compaction.plan import CompactionPlan
from spass.sessions.compaction.summary_record import Summary
from spass.sessions.deletion import delete_session
from spass.sessions.hold import acquire_hold, new_hold, release_hold
from spass.sessions.record import load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import HoldKind, Session, decode_session
from spass.sessions.turn import Turn
from spass.sessions.turn_request import ShortenHistory
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.sampling import SOAK
from tests.simulated.schedule import MANY_FAULTS, FaultRates, Schedule, run_schedule
from tests.unit.sessions.chats import Chats, say_yes
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer

SEEDS = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else range(1000 if SOAK else 60)
RACE_FAULTS: Final = FaultRates({fault: 3 * odds for fault, odds in MANY_FAULTS.odds.items()})
AGENT, USER, TENANT = AgentName("librarian"), UserId("ana"), TenantId("demo")
NAMES: Final = ("notes", "plans")
ENTRIES: Final = (Message(Role.USER, "imported"),)


@dataclass(slots=True)
class Race:
    """The sessions of one user, and the tasks that work on them. ``answered`` are the messages whose client got the answer, and
    ``deleted`` the sessions whose deletion began."""

    schedule: Schedule
    aws: MemoryAws
    answered: set[str] = field(default_factory=set)
    deleted: set[SessionId] = field(default_factory=set)

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(TENANT)

    @property
    def scope(self) -> Scope:
        identity = Identity(TENANT, "token", False, ("*",))
        return Scope.for_request(Caller(identity, USER, RequestId("req_1"), None, 0, "/c1"), self.store)

    @property
    def chats(self) -> Chats:
        """Return the chats of a new process, with empty caches."""
        now = self.schedule.now
        return Chats(Sessions(Cascade(GatewayConfig()), ScriptedSummarizer, clock=now), self.scope, 0.0, clock=now)

    async def chat(self, message_id: str) -> None:
        """Post one message until its stream is done, at most six times. The session is new, has a name, or is an existing one."""
        wanted = self.schedule.rng.choice([None, *NAMES, *NAMES, *self.session_ids()])
        for _ in range(6):
            await self.wait(40)
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                turn = await self.chats.start(message_id, wanted, ENTRIES, self.answer, message_id)
                if isinstance(turn, Turn):
                    await turn.answer()
                elif turn.state is StreamState.RUNNING:
                    continue
                self.answered.add(message_id)
                return

    async def answer(self, history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        await self.wait(90)
        async for event in say_yes(history, shorten_history):
            yield event

    async def compact(self) -> None:
        """Compact some session, as a job does."""
        await self.wait(150)
        for session in self.some_session():
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                now, owner = self.schedule.now(), new_id("job")
                agent, hold = self.heads()[session].agent, new_hold(owner, HoldKind.JOB, None, now)
                source = await acquire_hold(self.store, session, agent, USER, hold, now)
                turns = await load_turns(self.store, session, 1)
                plan = CompactionPlan.new(session, source.next_seq)
                if source.message_count:
                    await commit_compaction(
                        self.store, source, turns, plan, Summary("s", "m"), owner=owner, at=self.schedule.now()
                    )
                await release_hold(self.store, session, owner)

    async def delete(self) -> None:
        await self.wait(200)
        for session in self.some_session():
            self.deleted.add(session)
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await delete_session(self.store, session, self.heads()[session].agent, USER, self.schedule.now())

    async def wait(self, longest: float) -> None:
        await asyncio.sleep(self.schedule.random_delay(longest))

    def heads(self) -> dict[SessionId, Session]:
        heads = [item for item in self.aws.table.items() if "#SES#" in str(item["pk"]) and item["sk"] == "HEAD"]
        return {head.id: head for head in map(decode_session, heads)}

    def session_ids(self) -> list[SessionId]:
        return sorted(session for session, head in self.heads().items() if head.deleted_at is None)

    def some_session(self) -> list[SessionId]:
        """Return one session, if there is any."""
        sessions = self.session_ids()
        return [self.schedule.rng.choice(sessions)] if sessions else []


async def check(race: Race) -> None:
    heads, store = race.heads(), race.store
    names = {
        str(item["sk"]).removeprefix("NAME#"): heads.get(SessionId(str(item["session"])))
        for item in race.aws.table.items()
        if str(item["sk"]).startswith("NAME#")
    }
    for name, head in names.items():
        assert head is not None, f"{name} belongs to a session that does not exist"
        assert (head.name, head.archived_at, head.deleted_at) == (name, None, None)
    existing = [head for head in heads.values() if head.deleted_at is None]
    newest = Counter(head.name for head in existing if head.name is not None and head.archived_at is None)
    assert newest == Counter(names.keys())
    listed = await store.table.query(keys.user_sessions_partition(TENANT, USER, AGENT), prefix=keys.USER_SESSION_PREFIX)
    assert {item["id"] for item in listed} == {head.id for head in existing}
    recorded: Counter[str] = Counter()
    for head in existing:
        texts = [stored.message.content for turn in await load_turns(store, head.id, 1) for stored in turn.messages]
        assert len(texts) == head.message_count
        assert head.hold is None or not head.hold.live(race.schedule.now())
        assert texts[0] == "imported" if head.parent_session_id is None else texts[0].startswith("[compaction summary")
        assert texts.count("imported") == (head.parent_session_id is None)
        recorded.update(text for text in texts if text.startswith("m-"))
    assert set(recorded.values()) <= {1}, recorded
    for message_id in sorted(race.answered):
        stream = await race.chats.head(message_id)
        assert stream is not None
        if stream.last_session not in race.deleted:
            assert recorded[message_id] == 1, f"{message_id} was answered and is not recorded"


async def run_race(schedule: Schedule) -> dict[str, int]:
    """Return how many answers, compactions and named sessions there were."""
    race = Race(schedule, MemoryAws(clock=schedule.now))
    tasks = [
        *(race.chat(f"m-{number}") for number in range(8)),
        *(race.compact() for _ in range(3)),
        race.delete(),
        race.delete(),
    ]
    await asyncio.gather(*tasks)
    await schedule.calm()
    await asyncio.sleep(300)  # all holds expire
    for head in race.heads().values():
        if head.deleted_at is not None:  # a delete without faults finishes what an interrupted one began
            with suppress(SessionNotFound):
                await delete_session(race.store, head.id, AGENT, USER, schedule.now())
    await check(race)
    heads = race.heads().values()
    return {
        "answers": len(race.answered),
        "compactions": sum(head.archived_at is not None for head in heads),
        "attempts after the first": sum(item.get("attempt") not in (None, 1) for item in race.aws.table.items()),
    }


def test_racing_chats_share_their_names_and_record_each_message_once(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        schedule = Schedule(seed, RACE_FAULTS)
        try:
            counts.update(run_schedule(schedule, lambda schedule=schedule: run_race(schedule)))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
    for name, count in counts.items():
        record_property(name, count)
    assert min(counts.values()) > 0
    assert counts["answers"] > 4 * len(SEEDS) or len(SEEDS) == 1
