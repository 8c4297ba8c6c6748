"""What joins the commit of a turn, and what happens if another request changes it first."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.errors import InternalError, SessionBusy, StorageUnavailable
from spass.core.events import Event
from spass.core.ids import AgentName, RequestId, SessionId, UserId
from spass.core.run_result import AgentRun, RunResult
from spass.runs.commit import Participant
from spass.sessions.hold import TurnRequest
from spass.store import keys
from spass.store.invocation import PendingCall
from spass.store.keys import Key
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import ITEM_ABSENT, Equals, Put, Update, Write
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.simulated.scripted_turns import LoadHistory
from tests.unit.sessions.conftest import SessionsHarness, answer_events
from tests.unit.sessions.turns import ScriptedTurn, start_turn
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time
AGENT = AgentName("librarian")
T = TypeVar("T")


@pytest.fixture(autouse=True)
def without_threads() -> Iterator[None]:
    with inject(Inline()):
        yield


class Inline(FaultPlan):
    """A plan whose calls take no thread, because virtual time does not wait for one."""

    in_threads = False

    async def run_call(self, run: PendingCall[T]) -> T:
        await asyncio.sleep(0)
        return await run()


async def answer_yes(message: str, load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
    for event in answer_events("yes"):
        yield event


@dataclass
class Counter:
    """A participant that numbers its entry with a counter, which ``rivals`` other writers change just before the commit."""

    harness: SessionsHarness
    rivals: int = 0
    renewals: int = 0
    outcomes: list[RunResult] = field(default_factory=list)
    gives_up: bool = False

    def key(self, name: str) -> Key:
        return keys.commit_marker(self.harness.scope().store.tenant, name)

    async def read(self) -> int:
        item = await self.harness.scope().store.table.get(self.key("counter"))
        return int(str(item["number"])) if item is not None else 0

    async def entries(self) -> list[int]:
        table = self.harness.scope().store.table
        return [number for number in range(20) if await table.get(self.key(f"entry-{number}")) is not None]

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        self.outcomes.append(outcome)
        return await self.entry()

    async def renew(self) -> Sequence[Write] | None:
        self.renewals += 1
        return None if self.gives_up else await self.entry()

    async def entry(self) -> Sequence[Write]:
        number = await self.read()
        if self.rivals:
            self.rivals -= 1
            await self.harness.scope().store.table.write(Put(self.key("counter"), {"number": number + 1}))
        unchanged = Equals("number", number) if number else ITEM_ABSENT
        return [
            Update(self.key("counter"), set={"number": number + 1}, when=unchanged),
            Put(self.key(f"entry-{number}"), {}, ITEM_ABSENT),
        ]


@dataclass
class Plain:
    """A participant that never renews its write."""

    key: Key

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        return [Put(self.key, {}, ITEM_ABSENT)]


def start(harness: SessionsHarness, session: SessionId, *participants: Participant) -> ScriptedTurn:
    run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
    request = TurnRequest(session, UserId("ana"), "hello", run, 250)
    return start_turn(harness.sessions, harness.scope(), request, answer_yes, participants)


async def is_recorded(harness: SessionsHarness, session: SessionId) -> bool:
    return (await harness.sessions.get(harness.scope(), AGENT, session)).message_count == 2


@pytest.mark.parametrize("rivals", [0, 2])
async def test_a_participant_gets_the_outcome_and_its_writes_join_those_of_others(harness: SessionsHarness, rivals: int) -> None:
    session, counter = await harness.create(), Counter(harness, rivals)
    outcome = (await start(harness, session, Plain(counter.key("own")), counter).answer()).outcome
    assert counter.outcomes == [outcome]
    assert await counter.entries() == [rivals]
    assert await harness.scope().store.table.get(counter.key("own")) is not None


async def test_an_error_of_a_participant_fails_the_turn(harness: SessionsHarness) -> None:
    session, counter = await harness.create(), Counter(harness)

    @dataclass
    class Failing:
        async def writes(self, outcome: RunResult) -> Sequence[Write]:
            raise InternalError("No.")

    with pytest.raises(InternalError):
        await start(harness, session, counter, Failing()).answer()
    assert (await counter.entries(), await is_recorded(harness, session)) == ([], False)


@pytest.mark.parametrize("rivals", [1, 5])
async def test_writes_that_others_overtook_are_renewed_until_they_take_effect(harness: SessionsHarness, rivals: int) -> None:
    session, counter = await harness.create(), Counter(harness, rivals)
    await start(harness, session, counter).answer()
    assert (counter.renewals, await counter.entries()) == (rivals, [rivals])
    assert await is_recorded(harness, session)


@pytest.mark.parametrize(("gives_up", "renewals"), [(True, 1), (False, 10)])
async def test_a_turn_whose_writes_never_take_effect_is_not_recorded(
    harness: SessionsHarness, gives_up: bool, renewals: int
) -> None:
    session, counter = await harness.create(), Counter(harness, rivals=100, gives_up=gives_up)
    with pytest.raises(SessionBusy if gives_up else StorageUnavailable):
        await start(harness, session, counter).answer()
    assert (counter.renewals, await counter.entries()) == (renewals, [])
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert (stored.message_count, stored.hold) == (0, None)


async def test_a_turn_that_lost_its_session_renews_nothing(harness: SessionsHarness) -> None:
    session = await harness.create()

    class Losing(Counter):
        async def writes(self, outcome: RunResult) -> Sequence[Write]:
            key = keys.session_head(harness.scope().store.tenant, session)
            await harness.scope().store.table.write(Update(key, remove=("hold",)))
            return await super().writes(outcome)

    counter = Losing(harness)
    with pytest.raises(SessionBusy, match="took this session over"):
        await start(harness, session, counter).answer()
    assert (counter.renewals, await counter.entries(), await is_recorded(harness, session)) == (0, [], False)


async def run_turn_under(plan: Inline) -> tuple[bool, list[int]]:
    """Run a turn that one rival overtakes. Return whether it is recorded, and the entries that joined it."""
    harness = SessionsHarness(MemoryAws())
    session, counter = await harness.create(), Counter(harness, rivals=1)
    with inject(plan), suppress(StorageUnavailable, SessionBusy, Crash):
        await start(harness, session, counter).answer()
    recorded, entries = await is_recorded(harness, session), await counter.entries()
    harness.now += LEASE_SECONDS + 1
    await harness.say(session, "and now?")
    assert await is_recorded(harness, session) is not recorded, "the session takes further turns"
    return recorded, entries


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", Fault)
async def test_a_fault_at_any_call_leaves_the_turn_with_its_entry_or_neither(fault: Fault, times: int) -> None:
    clean = Inline()
    assert await run_turn_under(clean) == (True, [1])
    ends = [await run_turn_under(Inline(fault, at, times)) for at in range(len(clean.calls))]
    for recorded, entries in ends:
        assert len(entries) == recorded
    assert len(ends) >= 8
    assert any(recorded for recorded, _ in ends) or fault is Fault.CRASH_BEFORE
