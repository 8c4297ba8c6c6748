"""Race first and later runs of one operator, by two agents, with compactions, deletes of its session and forgetting, with faults.

In the end all of its runs are turns of one chain of sessions, and its state is what the last recorded run wrote.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.errors import SessionNotFound, SpassError
from spass.core.events import Event
from spass.core.ids import AgentName, Operator, OperatorId, RequestId, SessionId, TenantId, UserId, new_id
from spass.core.messages import Message, Role
from spass.core.run_result import AgentRun, RunResult
from spass.memory.state import OperatorState, read_state
from spass.sessions.compaction.commit import commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary
from spass.sessions.deletion import delete_session
from spass.sessions.hold import TurnRequest, acquire_hold, new_hold, release_hold
from spass.sessions.operator_requests import delete_operator
from spass.sessions.operators import OperatorPointer
from spass.sessions.record import load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import HoldKind, Session, decode_session
from spass.store.tenant_store import TenantStore
from spass.store.writes import Write
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.simulated.schedule import MANY_FAULTS, FaultRates, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.scopes import scope_of
from tests.unit.sessions.conftest import answer_events, responder
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer
from tests.unit.sessions.turns import start_turn

RACE_FAULTS: Final = FaultRates({fault: 3 * odds for fault, odds in MANY_FAULTS.odds.items()})
USER, TENANT = UserId("ana"), TenantId("demo")
OPERATOR: Final = Operator(USER, OperatorId("watch"))
AGENTS: Final = (AgentName("librarian"), AgentName("clerk"))


@dataclass(frozen=True, slots=True)
class NextState:
    """The state that a run leaves, which joins its commit."""

    pointer: OperatorPointer
    state: str

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        return [self.pointer.update(outcome, self.state)]


@dataclass(slots=True)
class OperatorRace:
    """The runs of one operator, and the tasks that work on its sessions.

    ``answered`` are the messages whose client got the answer, ``deleted`` the sessions whose deletion began, and ``forgotten`` is
    the number of times that it may have been forgotten.
    """

    schedule: Schedule
    aws: MemoryAws
    answered: set[str] = field(default_factory=set)
    deleted: set[SessionId] = field(default_factory=set)
    forgotten: int = 0

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(TENANT)

    @property
    def scope(self) -> Scope:
        return scope_of(self.store, USER)

    async def run(self, message: str) -> None:
        """Run the operator until it answers ``message``, at most eight times."""
        agent = self.schedule.rng.choice(AGENTS)
        for _ in range(8):
            await self.wait(40)
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await self.run_once(agent, message)
                self.answered.add(message)
                return

    async def run_once(self, agent: AgentName, message: str) -> RunResult:
        sessions = Sessions(Cascade(GatewayConfig()), ScriptedSummarizer, clock=self.schedule.now)  # with empty caches
        opening, pointer = await sessions.open_operator(self.scope, agent, OPERATOR)

        request = TurnRequest(
            opening.session,
            USER,
            message,
            AgentRun(RequestId("req_1"), agent, "operative", "talker"),
            250,
            idempotent_request(message, "b" * 64, f"/a1/agents/{agent}/chat"),
            opening=opening,
            operator=OPERATOR.id,
        )
        scope = self.scope.for_agent(agent, opening.session)
        turn = start_turn(sessions, scope, request, responder(self.answer), [NextState(pointer, message)])
        return (await turn.answer()).outcome

    async def forget(self) -> None:
        await self.wait(200)
        self.forgotten += 1
        with inject(self.schedule.process()), suppress(SpassError, Crash):
            await delete_operator(self.store, OPERATOR, self.schedule.now)

    async def answer(self, history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        await self.wait(90)
        for event in answer_events("yes"):
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

    def chain(self, newest: Session) -> list[Session]:
        """Return the sessions that end with ``newest``, oldest first."""
        heads, chain = self.heads(), [newest]
        while (parent := chain[0].parent_session_id) is not None:
            chain.insert(0, heads[parent])
        return chain


async def texts_of(race: OperatorRace, session: SessionId) -> list[str]:
    """Return the messages of the runs in a session, without those that a compaction has copied to it."""
    turns = await load_turns(race.store, session, 1)
    messages = [stored.message for turn in turns for stored in turn.messages]
    return [message.content for message in messages if message.role is Role.USER]


async def check(race: OperatorRace) -> None:
    state = await read_state(race.store, OPERATOR)
    existing = [head for head in race.heads().values() if head.deleted_at is None]
    assert {head.operator for head in existing} <= {OPERATOR.id}
    assert {head.agent for head in existing} <= {*AGENTS}
    live = [head for head in existing if head.archived_at is None]
    assert len(live) <= 1 + race.forgotten
    for head in live:
        assert head.hold is None or not head.hold.live(race.schedule.now())
        assert len({member.agent for member in race.chain(head)}) == 1, "a chain stays with its first agent"
    recorded = Counter([text for head in existing for text in await texts_of(race, head.id)])
    assert set(recorded.values()) <= {1}, recorded
    if not race.deleted:
        assert race.answered <= recorded.keys(), "an answered run is recorded"
    if state is None:
        assert race.forgotten or not recorded
    else:
        await check_state(race, state, live)


async def check_state(race: OperatorRace, state: OperatorState, live: Sequence[Session]) -> None:
    """Check that the state points to the one chain of the operator and is that of its last run."""
    chains = [chain for chain in map(race.chain, live) if state.session in {member.id for member in chain}]
    if not chains:
        assert race.deleted, "the session to which the state points was deleted"
        return
    (chain,) = chains
    texts = [text for member in chain if member.deleted_at is None for text in await texts_of(race, member.id)]
    if not race.deleted:
        assert state.state == (texts[-1] if texts else None)
        assert state.version == len(texts)
    elif texts and chain[-1].parent_session_id is None:
        assert state.state == texts[-1]


async def tell_race(schedule: Schedule) -> dict[str, int]:
    """Return how many answers, compactions and live sessions there were."""
    race = OperatorRace(schedule, MemoryAws(clock=schedule.now))
    others = [(), (race.delete, race.delete), (race.forget,)][schedule.seed % 3]
    tasks = [race.compact(), race.compact(), *(other() for other in others)]
    await asyncio.gather(*(race.run(f"m-{number}") for number in range(8)), *tasks)
    await schedule.calm()
    await asyncio.sleep(300)  # all holds expire
    for head in race.heads().values():
        if head.deleted_at is not None:  # a delete without faults finishes what an interrupted one began
            with suppress(SessionNotFound):
                await delete_session(race.store, head.id, head.agent, USER, schedule.now())
    await check(race)
    before = await read_state(race.store, OPERATOR)
    await race.run_once(AGENTS[0], "after all")
    after = await read_state(race.store, OPERATOR)
    assert after is not None
    assert (after.state, after.agent in AGENTS) == ("after all", True)
    assert before is None or after.version > before.version
    return {
        "answers": len(race.answered),
        "compactions": sum(head.archived_at is not None for head in race.heads().values()),
        "sessions of the other agent": sum(
            [head.operator is not None and head.agent == AGENTS[1] for head in race.heads().values()]
        ),
    }


def run_race(seed: int) -> dict[str, int]:
    schedule = Schedule(seed, RACE_FAULTS)
    return run_schedule(schedule, lambda: tell_race(schedule))


@seeded(15, in_soak=990)
def test_racing_runs_of_an_operator_share_one_session_and_leave_the_last_state(
    seeds: Sequence[int], record_property: Record
) -> None:
    counts = run_seeds(seeds, run_race, record_property)
    assert counts["answers"] > 4 * len(seeds) or len(seeds) == 1
