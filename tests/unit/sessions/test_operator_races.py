"""Race first and later runs of one operator, by two agents, with compactions, deletes of its session and forgetting, with faults.

In the end all of its runs are turns of one chain of sessions, and its state is what the last recorded run wrote.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spass.core.errors import SessionNotFound, SpassError
from spass.core.ids import AgentName, OperatorId, RequestId, SessionId
from spass.core.messages import Role
from spass.core.outcome import AgentRun, TurnOutcome
from spass.memory.operator import Operator
from spass.memory.state import OperatorState, read_state
from spass.sessions.commit_participants import join_commit
from spass.sessions.deletion import delete_session
from spass.sessions.forget import forget
from spass.sessions.record import load_turns
from spass.sessions.session import Session
from spass.sessions.turn_request import CommitWith, TurnRequest
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.sampling import SOAK
from tests.simulated.schedule import Schedule, run_schedule
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.sessions.conftest import responder
from tests.unit.sessions.test_opening_races import RACE_FAULTS, USER, Race

SEEDS: Final[Sequence[int]] = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else range(1000 if SOAK else 90)
OPERATOR: Final = Operator(USER, OperatorId("watch"))
AGENTS: Final = (AgentName("librarian"), AgentName("clerk"))


@dataclass(slots=True)
class OperatorRace(Race):
    """The runs of one operator. ``forgotten`` is the number of times that it may have been forgotten."""

    forgotten: int = 0

    async def run(self, message: str) -> None:
        """Run the operator until it answers ``message``, at most eight times."""
        agent = self.schedule.rng.choice(AGENTS)
        for _ in range(8):
            await self.wait(40)
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await self.run_once(agent, message)
                self.answered.add(message)
                return

    async def run_once(self, agent: AgentName, message: str) -> TurnOutcome:
        sessions = self.chats.sessions
        opening, pointer = await sessions.open_operator(self.scope, agent, OPERATOR)

        async def commit(outcome: TurnOutcome) -> CommitWith:
            return pointer.commit(outcome, message)

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
        turn = sessions.turn(scope, request, join_commit(responder(self.answer), commit))
        return (await turn.answer()).outcome

    async def forget(self) -> None:
        await self.wait(200)
        self.forgotten += 1
        with inject(self.schedule.process()), suppress(SpassError, Crash):
            await forget(self.store, OPERATOR, self.schedule.now)

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


async def run_race(schedule: Schedule) -> dict[str, int]:
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


def test_racing_runs_of_an_operator_share_one_session_and_leave_the_last_state(
    record_property: Callable[[str, object], None],
) -> None:
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
    assert counts["answers"] > 4 * len(SEEDS) or len(SEEDS) == 1
