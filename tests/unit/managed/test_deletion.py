"""A deleted agent leaves nothing behind, wherever its deletion was interrupted, and nothing of another agent goes with it."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spass.core.errors import AgentNotFound, SessionBusy, SpassError, StorageUnavailable
from spass.core.time import Deadline
from spass.managed import mailbox
from spass.managed.deletion import finish_deletion
from spass.managed.records import RunTrigger
from spass.managed.run_start import new_run, skip, start
from spass.managed.sweep import ManagedSweep
from spass.store import keys
from spass.store.writes import Update, Value
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import SOAK
from tests.unit.managed.belongings import Belongings
from tests.unit.managed.owned_agents import OwnedAgents

pytestmark = pytest.mark.anyio

STEP = 1 if SOAK else 4
"""The faults of a suite begin at different calls, so that together they meet each call."""


@pytest.fixture
def belongings(owned: OwnedAgents) -> Belongings:
    return Belongings(owned)


async def test_everything_that_belongs_to_an_agent_goes(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await belongings.agent()
    await owned.agents.delete(owned.scope(), agent.id)
    assert belongings.items() == []
    assert owned.aws.bucket.keys == []
    assert owned.schedules.entries == {}
    with pytest.raises(AgentNotFound):
        await owned.agents.delete(owned.scope(), agent.id)


async def test_other_agents_keep_everything(belongings: Belongings, owned: OwnedAgents) -> None:
    kept = [await belongings.agent(), await belongings.agent("bob")]
    before, objects = belongings.items(), owned.aws.bucket.keys
    agent = await belongings.agent()
    await owned.agents.delete(owned.scope(), agent.id)
    assert sorted(map(str, belongings.items())) == sorted(map(str, before))
    assert owned.aws.bucket.keys == objects
    assert owned.schedules.entries.keys() == {agent.id for agent in kept}


async def test_an_agent_is_not_deleted_during_a_run_or_by_a_stranger(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await belongings.agent()
    run = await belongings.start(agent, "hello")
    before = belongings.items()
    with pytest.raises(SessionBusy) as busy:
        await owned.agents.delete(owned.scope(), agent.id)
    assert busy.value.details == {"run_id": run.id}
    for stranger in (owned.scope("bob"), owned.scope(None), owned.scope(tenant="demo-2")):
        with pytest.raises(AgentNotFound):
            await owned.agents.delete(stranger, agent.id)
    assert belongings.items() == before


async def test_a_lost_run_does_not_keep_its_agent_alive(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await belongings.agent()
    found = await owned.agents.get(owned.scope(), agent.id)
    await start(belongings.store, found, new_run(found, RunTrigger.MESSAGE, "t", owned.now), "hello", owned.now)
    owned.now += 100
    await owned.agents.delete(owned.scope(), agent.id)
    assert belongings.items() == []


async def test_a_hidden_agent_accepts_nothing_more(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await belongings.agent()
    before = await owned.agents.get(owned.scope(), agent.id)
    owned.schedules.fails = True
    with pytest.raises(StorageUnavailable):
        await owned.agents.delete(owned.scope(), agent.id)
    assert await owned.listed(owned.scope()) == []
    run = new_run(before, RunTrigger.SCHEDULE, "t", owned.now)
    with pytest.raises(AgentNotFound):
        await owned.agents.get(owned.scope(), agent.id)
    with pytest.raises(AgentNotFound):
        await owned.patch(agent, name="new")
    with pytest.raises(AgentNotFound):
        await mailbox.put(belongings.store, before, "late", owned.now)
    with pytest.raises(AgentNotFound):
        await start(belongings.store, before, run, "late", owned.now)
    with pytest.raises(AgentNotFound):
        await skip(belongings.store, run, owned.now)
    owned.schedules.fails = False
    await owned.agents.delete(owned.scope(), agent.id)
    for _ in range(2):
        with pytest.raises(AgentNotFound):
            await mailbox.put(belongings.store, before, "late", owned.now)
        with pytest.raises(AgentNotFound):
            await start(belongings.store, before, run, "late", owned.now)
    assert belongings.items() == []


async def test_what_a_held_session_keeps_is_deleted_by_the_sweep(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await belongings.agent()
    members = [item for item in belongings.items() if item["sk"] == "HEAD" and "successor_session_id" not in item]
    for head in members:
        hold: Value = {"owner": "turn_1", "kind": "turn", "expires_at": int(owned.now) + 60}
        await belongings.store.table.write(Update(keys.Key(str(head["pk"]), "HEAD"), set={"hold": hold}))
    await owned.agents.delete(owned.scope(), agent.id)
    with pytest.raises(AgentNotFound):
        await owned.agents.get(owned.scope(), agent.id)
    owned.now += 60
    swept = await ManagedSweep(belongings.store, owned.schedules, Deadline.after(60), lambda: owned.now).run()
    assert (swept.deleted, swept.failed) == (1, 0)
    assert belongings.items() == []


@dataclass(frozen=True)
class Countdown(Deadline):
    """A deadline that comes after so many looks at it."""

    looks: list[None] = field(default_factory=list)

    def remaining(self) -> float:
        return 1.0 if self.looks and self.looks.pop() is None else 0.0


async def test_a_deletion_may_stop_at_its_deadline_anywhere_and_the_sweep_finishes_it(
    belongings: Belongings, owned: OwnedAgents
) -> None:
    for looks in count():
        agent = await belongings.agent(notes=3)
        deadline = Countdown(0, [None] * looks)
        await owned.agents.delete(replace(owned.scope(), deadline=deadline), agent.id)
        with pytest.raises(AgentNotFound):
            await owned.agents.get(owned.scope(), agent.id)
        is_whole = belongings.items() == []
        swept = await ManagedSweep(belongings.store, owned.schedules, Deadline.after(60), lambda: owned.now).run()
        assert (swept.deleted, swept.failed) == (0 if is_whole else 1, 0)
        assert belongings.items() == []
        if is_whole:
            break
    assert looks >= 5, "it looks before each session and each batch of items"


async def test_an_agent_that_is_not_hidden_is_not_removed_by_the_sweep(belongings: Belongings, owned: OwnedAgents) -> None:
    agent = await owned.create()
    before = belongings.items()
    await finish_deletion(belongings.store, agent.id, owned.schedules, Deadline.after(60), lambda: owned.now)
    assert belongings.items() == before


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY, Fault.THROTTLE])
@pytest.mark.parametrize("by_sweep", [False, True])
async def test_a_deletion_is_finished_after_a_fault_at_any_call(
    belongings: Belongings, owned: OwnedAgents, fault: Fault, by_sweep: bool
) -> None:
    other = await owned.create(owned.scope("bob"))
    with inject(FaultPlan()) as whole:
        await owned.agents.delete(owned.scope(), (await belongings.agent(notes=3)).id)
    points = range([*Fault].index(fault) % STEP, len(whole.calls), STEP)
    for at in points:
        agent = await belongings.agent(notes=3)
        with suppress(Crash, SpassError), inject(FaultPlan(fault, at, times=2)):
            await owned.agents.delete(owned.scope(), agent.id)
        if by_sweep:
            await ManagedSweep(belongings.store, owned.schedules, Deadline.after(60), lambda: owned.now).run()
        with suppress(AgentNotFound):
            await owned.agents.delete(owned.scope(), agent.id)
        assert {str(item["sk"]) for item in belongings.items()} == {"AGENT", f"AGT#{other.id}"}
        assert owned.aws.bucket.keys == []
