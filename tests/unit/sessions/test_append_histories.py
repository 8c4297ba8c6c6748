"""Many clients append to a few sessions while calls get lost, late and doubled, processes die and stand still, and time passes.

A checker that knows nothing of how it is done then looks at what is stored and at what everybody was told. A seed that fails
tells the same story again: ``SPASS_SEED=7 pytest …`` plays that one alone.
"""

import asyncio
import os
from collections.abc import Callable
from itertools import count
from typing import Final

import pytest

from spass.core.ids import SessionId
from spass.sessions import record
from spass.sessions.session import CreateSession
from spass.tenancy.scalars import CompactStrategy
from tests.simulated.gateway import Gateway
from tests.simulated.invariants import Chain, violations
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule

SOAK: Final = bool(os.environ.get("SPASS_SOAK"))
OPERATIONS: Final = 10_000 if SOAK else 500
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else range(20 if SOAK else 10)
CLIENTS: Final = 6
AT_ONCE: Final = 4
OF_A_SESSION: Final = 50
FORGETFUL: Final = 0.2  # who asks the first session of a chain, not the last that answered
SETTLED: Final = 400.0  # seconds; longer than any call is late, any model slow and any hold lives


class Clients:
    """Append to the open sessions and read them. A session that has its share of messages is replaced by a new one."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.rng = gateway.schedule.rng
        self.open: dict[SessionId, int] = {}
        self.known: list[SessionId] = []
        self.ends: dict[SessionId, SessionId] = {}
        self.operations = 0
        self.unheard: list[tuple[SessionId, str, str]] = []
        self._questions = count(1)

    async def storm(self) -> None:
        for _ in range(AT_ONCE):
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
                case fate if fate < 0.15:
                    await self.gateway.read(self.rng.choice(self.known[-6:]))
                case fate:
                    await self._ask(session, keyed=fate < 0.85)
            await asyncio.sleep(self.gateway.schedule.random_delay(1.0))

    async def _open(self) -> None:
        strategy: CompactStrategy = "auto" if self.rng.random() < 0.7 else "manual"
        keep = self.rng.choice([0, 3, 10])
        made = await self.gateway.create(CreateSession(compact_strategy=strategy, compact_keep_last_n=keep))
        self.open[made] = OF_A_SESSION
        self.known.append(made)

    async def _ask(self, session: SessionId, *, keyed: bool) -> None:
        number = next(self._questions)
        padding = "long " * 300 if self.rng.random() < 0.02 else ""
        question, key = f"question {number} {padding}", f"key {number}" if keyed else None
        first, session = session, session if self.rng.random() < FORGETFUL else self.ends.get(session, session)
        answered = await self.gateway.send(session, question, key, tries=self.rng.choice([2, 20]))
        if answered:
            self.ends[first] = self.gateway.log.told[question].session
        if key is not None and not answered:
            self.unheard.append((session, question, key))
        elif key is not None and self.rng.random() < 0.05:  # who was answered may ask again
            await self.gateway.send(session, question, key, tries=3)

    async def settle(self) -> None:
        """After the faults have ended, every session can be used, and each unanswered request gets an answer."""
        await self.gateway.schedule.calm()
        await asyncio.sleep(SETTLED)
        assert self.gateway.live_holds() == []
        for session, question, key in self.unheard:
            self.gateway.log.refused.discard(question)
            assert await self.gateway.send(session, question, key), question
        for session in self.known:
            assert await self.gateway.send(session, f"question {next(self._questions)}", None), session
            await self.gateway.read(session)


def history(seed: int) -> tuple[Schedule, Gateway, list[Chain]]:
    schedule = Schedule(seed)
    gateway = Gateway(schedule)

    async def story() -> list[Chain]:
        clients = Clients(gateway)
        await clients.storm()
        await clients.settle()
        return await gateway.chains()

    return schedule, gateway, run_schedule(schedule, story)


@pytest.fixture(autouse=True)
def store_long_turns_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "INLINE_BYTES", 3000)


@pytest.mark.parametrize("seed", SEEDS)
def test_answered_turns_are_stored_once_and_in_order(seed: int, record_property: Callable[[str, object], None]) -> None:
    schedule, gateway, chains = history(seed)
    assert violations(chains, gateway.log) + gateway.trespasses == [], f"SPASS_SEED={seed}"
    assert schedule.fault_counts.keys() == MANY_FAULTS.odds.keys(), "everything has happened that can"
    record_property("operations", OPERATIONS)
    record_property("calls", schedule.calls)
    record_property("mishaps", sum(schedule.fault_counts.values()))
