"""Four compactions and four turns race on one session, under hundreds of schedules in which calls fail and processes crash.

The history of the chain must equal the history of a model: a list to which the answers of the clients were applied in the order
of the commits.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from spass.core.ids import SessionId
from spass.core.messages import Message, Role
from spass.sessions import record
from spass.sessions.compaction.job import JOB_SECONDS, Job, JobStatus
from spass.sessions.session import CreateSession
from spass.store.overflow import Overflow
from tests.simulated.compaction_executions import CompactionExecutions
from tests.simulated.gateway import Gateway
from tests.simulated.invariants import Chain, ClientLog, summary_of, violations
from tests.simulated.schedule import MANY_FAULTS, NO_FAULTS, CallFault, FaultRates, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

TURNS: Final = 4
COMPACTIONS: Final = 4
SETTLE_SECONDS: Final = 400.0
WINDOW: Final = 150
RACE_FAULTS: Final = FaultRates({fault: 2 * odds for fault, odds in MANY_FAULTS.odds.items()} | {CallFault.PAUSE: 0.03})
"""Frequent pauses, so that in most races a process continues after it has lost its hold."""
LONG: Final = "long " * 120
"""A text that makes a session of a few messages too long for the model."""

Words = tuple[str, str]


class Race:
    """One session, with requested compactions and compactions before turns that are too long."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed, NO_FAULTS)
        self.gateway = Gateway(self.schedule, window=WINDOW)
        self.compactions = CompactionExecutions(self.gateway)
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> list[Chain]:
        rng, gateway = self.schedule.rng, self.gateway
        session = await gateway.create(CreateSession(compact_strategy="auto", compact_keep_last_n=rng.choice([0, 1, 3, 5])))
        for number in range(rng.choice([1, 3, 5])):
            assert await gateway.send(session, f"before {number}", f"before {number}")
        self.schedule.fault_rates = RACE_FAULTS
        request_count = rng.choice([2, 3, 4])
        turns = [f"question {number}" for number in range(TURNS)]
        turns += [f"question {TURNS + number} {LONG}" for number in range(COMPACTIONS - request_count)]
        await asyncio.gather(
            *(self._send_turn(session, question) for question in turns),
            *(self._compact(session, number) for number in range(request_count)),
        )
        await self._settle(session, turns)
        return await gateway.chains()

    async def _send_turn(self, session: SessionId, question: str) -> None:
        await asyncio.sleep(self.schedule.random_delay(10.0))
        await self.gateway.send(session, question, question)

    async def _compact(self, session: SessionId, number: int) -> None:
        rng = self.schedule.rng
        await asyncio.sleep(self.schedule.random_delay(10.0))
        key = f"compaction {number}" if rng.random() < 0.5 else None
        self.outcomes[await self.compactions.ask(session, key, follow=rng.random() < 0.5)] += 1

    async def _settle(self, session: SessionId, turns: Sequence[str]) -> None:
        """Stop the faults, repeat the unanswered requests, and wait until jobs that never started expire."""
        await self.schedule.calm()
        await self.compactions.settle()
        await asyncio.sleep(SETTLE_SECONDS)
        assert self.gateway.live_holds() == []
        for question in turns:
            self.gateway.log.refused.discard(question)
            assert await self.gateway.send(session, question, question)
        await asyncio.sleep(JOB_SECONDS)
        for job in self.compactions.stored():
            assert (await self.compactions.look(job.id)).is_finished, job
        assert await self.gateway.send(session, "at last", "at last")


def build_model_history(chain: Chain, log: ClientLog) -> list[list[Words]]:
    """Return the history of a model: for each member of a chain a list of messages. Each answered turn adds messages, and each
    compaction replaces some of them by a summary."""
    answers = sorted(log.told.values(), key=lambda answer: answer.first_seq)
    histories: list[list[Words]] = []
    live: list[Words] = []
    earlier: str | None = None
    for member in chain:
        live = live + [
            (role, words) for answer in answers if answer.session == member.session.id for _, role, words in answer.messages
        ]
        histories.append(live)
        if (cut := member.session.compacted_before - 1) > 0:
            summarised = [Message(Role(role), words) for role, words in live[1 if earlier is not None else 0 : cut]]
            earlier = summary_of(earlier, summarised)
            live = [("assistant", f"[compaction summary from session {member.session.id}] {earlier}"), *live[cut:]]
    return histories


def read_stored_history(chain: Chain) -> list[list[Words]]:
    return [[(stored.message.role.value, stored.message.content) for stored in member.messages] for member in chain]


def check_jobs(jobs: Sequence[Job], chain: Chain) -> None:
    """Assert that each link of the chain is a succeeded job or a turn, and that no failed job is a link."""
    members = {member.session.id: member for member in chain}
    for job in jobs:
        source, successor = members[job.plan.source], members.get(job.plan.successor)
        if job.status is JobStatus.FAILED:
            assert successor is None, job
            continue
        assert successor is not None, job
        assert (source.session.archived_by, source.session.successor_session_id) == (job.id, job.plan.successor)
        assert job.result is not None
        assert job.result.compacted == source.session.compacted_before - 1
        assert job.result.kept == len(successor.turns[0].messages) - 1
    succeeded = {job.id for job in jobs if job.status is JobStatus.SUCCEEDED}
    for member in chain[:-1]:
        archived_by = str(member.session.archived_by)
        assert archived_by in succeeded or archived_by.startswith("turn_"), member.session


def check_leftovers(race: Race, chain: Chain) -> None:
    """Assert that failed attempts left no drafts and no sessions."""
    items = list(race.gateway.aws.table.items())
    assert [item["pk"] for item in items if item["sk"] == "DRAFT"] == []
    sessions = {str(str(item["pk"])).rpartition("#")[2] for item in items if "#SES#" in str(item["pk"])}
    assert sessions == {member.session.id for member in chain}
    listed = {str(item["sk"]).rpartition("#")[2] for item in items if "#USER#" in str(item["pk"])}
    assert listed == sessions


@pytest.fixture(autouse=True)
def store_long_turns_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 1500))


@seeded(30, in_soak=5040)
def test_the_history_after_a_race_equals_the_history_of_a_model(seeds: Sequence[int], record_property: Record) -> None:
    links = run_seeds(seeds, run_race, record_property)
    assert len(seeds) == 1 or min(links["job_"], links["turn"]) > 0, "compactions by jobs and before turns took place"


def run_race(seed: int) -> Counter[str]:
    """Return how many compactions jobs made, and how many turns."""
    race = Race(seed)
    (chain,) = run_schedule(race.schedule, race.run)
    assert violations([chain], race.gateway.log) + race.gateway.trespasses == []
    assert read_stored_history(chain) == build_model_history(chain, race.gateway.log)
    check_jobs(race.compactions.stored(), chain)
    check_leftovers(race, chain)
    return Counter(str(member.session.archived_by)[:4] for member in chain[:-1])
