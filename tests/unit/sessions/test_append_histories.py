"""Many clients append to a few sessions while calls are lost, delayed and duplicated, processes crash and pause, and time passes.

An independent checker then compares the stored turns with the answers that the clients received.
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Final

import pytest

from spass.core.ids import SessionId
from spass.sessions import record
from spass.sessions.session import CreateSession
from spass.store.overflow import Overflow
from spass.tenancy.scalars import CompactStrategy
from tests.sampling import SOAK
from tests.simulated.gateway import Gateway
from tests.simulated.invariants import Chain, violations
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

OPERATIONS: Final = 10_000 if SOAK else 500
CLIENTS: Final = 6
OPEN_SESSIONS: Final = 4
REQUESTS_PER_SESSION: Final = 50
OLD_SESSION_RATE: Final = 0.2  # fraction of requests to the first session of a chain instead of the last one
SETTLE_SECONDS: Final = 400.0  # seconds; exceeds every call delay, model delay and hold lifetime


class Clients:
    """Clients that append to the open sessions and read them. A session is replaced after ``REQUESTS_PER_SESSION`` requests."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.rng = gateway.schedule.rng
        self.open: dict[SessionId, int] = {}
        self.known: list[SessionId] = []
        self.last_sessions: dict[SessionId, SessionId] = {}
        self.operations = 0
        self.unanswered: list[tuple[SessionId, str, str]] = []
        self._questions = count(1)

    async def send_requests(self) -> None:
        """Open the sessions, and send the requests of all clients concurrently."""
        for _ in range(OPEN_SESSIONS):
            await self._open()
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        while self.operations < OPERATIONS:
            self.operations += 1
            session = self.rng.choice(list(self.open))
            self.open[session] -= 1
            if self.open[session] == 0:
                del self.open[session]
                await self._open()
            match self.rng.random():
                case draw if draw < 0.15:
                    await self.gateway.read(self.rng.choice(self.known[-6:]))
                case draw:
                    await self._send(session, keyed=draw < 0.85)
            await asyncio.sleep(self.gateway.schedule.random_delay(1.0))

    async def _open(self) -> None:
        strategy: CompactStrategy = "auto" if self.rng.random() < 0.7 else "manual"
        keep = self.rng.choice([0, 3, 10])
        session = await self.gateway.create(CreateSession(compact_strategy=strategy, compact_keep_last_n=keep))
        self.open[session] = REQUESTS_PER_SESSION
        self.known.append(session)

    async def _send(self, session: SessionId, *, keyed: bool) -> None:
        number = next(self._questions)
        padding = "long " * 300 if self.rng.random() < 0.02 else ""
        question, key = f"question {number} {padding}", f"key {number}" if keyed else None
        first, session = session, session if self.rng.random() < OLD_SESSION_RATE else self.last_sessions.get(session, session)
        is_answered = await self.gateway.send(session, question, key, tries=self.rng.choice([2, 20]))
        if is_answered:
            self.last_sessions[first] = self.gateway.log.told[question].session
        if key is not None and not is_answered:
            self.unanswered.append((session, question, key))
        elif key is not None and self.rng.random() < 0.05:  # a client may repeat an answered request
            await self.gateway.send(session, question, key, tries=3)

    async def settle(self) -> None:
        """Stop the faults, then assert that every session is usable and that each unanswered request gets an answer."""
        await self.gateway.schedule.calm()
        await asyncio.sleep(SETTLE_SECONDS)
        assert self.gateway.live_holds() == []
        for session, question, key in self.unanswered:
            self.gateway.log.refused.discard(question)
            assert await self.gateway.send(session, question, key), question
        for session in self.known:
            assert await self.gateway.send(session, f"question {next(self._questions)}", None), session
            await self.gateway.read(session)


def run_history(seed: int) -> dict[str, int]:
    """Run the clients under the schedule of a seed, and compare the stored chains with the answers."""
    schedule = Schedule(seed)
    gateway = Gateway(schedule)

    async def workload() -> list[Chain]:
        clients = Clients(gateway)
        await clients.send_requests()
        await clients.settle()
        return await gateway.chains()

    assert violations(run_schedule(schedule, workload), gateway.log) + gateway.trespasses == []
    assert schedule.fault_counts.keys() == MANY_FAULTS.odds.keys(), "every kind of fault occurred"
    return {"operations": OPERATIONS, "calls": schedule.calls, "mishaps": sum(schedule.fault_counts.values())}


@pytest.fixture(autouse=True)
def store_long_turns_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 3000))


@seeded(3, in_soak=21)
def test_answered_turns_are_stored_once_and_in_order(seeds: Sequence[int], record_property: Record) -> None:
    run_seeds(seeds, run_history, record_property)
