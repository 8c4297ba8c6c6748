"""A thousand random requests of owners in two tenants, one id a prefix of the other, against a model in plain Python.

Each request is sent to an agent of any owner. That of another owner is refused like one that does not exist.
"""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pytest

from spass.calls.scope import Scope
from spass.core.errors import AgentNotFound, AgentPaused, RunNotFound, SessionBusy, SpassError
from spass.core.ids import ManagedAgentId, RunId
from spass.managed import mailbox, runs
from spass.managed.body import PatchManagedAgent
from spass.managed.mailbox import INLINE_BYTES
from spass.managed.records import MessageStatus, RunStatus, RunTrigger
from spass.managed.responses import MessageView
from spass.managed.run_start import new_run, skip, start
from spass.managed.runs import fail, skip_queued
from spass.store.tenant_store import TenantStore
from tests.sampling import SOAK
from tests.unit.managed.managed_store import outcome, success
from tests.unit.managed.owned_agents import OwnedAgents

pytestmark = pytest.mark.anyio

SEED: Final = int(os.environ.get("SPASS_SEED", "17"))
REQUESTS: Final = 20_000 if SOAK else 400
ERROR: Final = {"code": "upstream_error", "message": "The provider failed."}


class Owner(NamedTuple):
    """An owner: without a user, it is the token."""

    tenant: str
    user: str | None
    token: str = "token-1"


OWNERS: Final = (
    Owner("demo", "ana"),
    Owner("demo", "bob"),
    Owner("demo-2", "ana"),
    Owner("demo", None),
    Owner("demo", None, "token-2"),
)


@dataclass
class Expected:
    """An agent as the model has it. ``messages`` have a content and the run that read or wrote it, ``runs`` a status."""

    owner: Owner
    name: str
    paused: bool = False
    failed: bool = False
    active: RunId | None = None
    messages: list[tuple[str, RunId | None]] = field(default_factory=list)
    runs: dict[RunId, RunStatus] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return "running" if self.active else "paused" if self.paused else "error" if self.failed else "idle"

    @property
    def refusal(self) -> type[SpassError] | None:
        """Return the error of a new run."""
        return AgentPaused if self.paused else SessionBusy if self.active else None


class World:
    """The agents of all owners, in the table and in the model."""

    def __init__(self, owned: OwnedAgents) -> None:
        self.owned = owned
        self.rng = random.Random(SEED)
        self.expected: dict[ManagedAgentId, Expected] = {}
        self.counts: Counter[str] = Counter()

    def scope(self, owner: Owner) -> Scope:
        """Return the scope of a request of ``owner``. Time stands still, so no run is lost."""
        scope = self.owned.scope(owner.user, tenant=owner.tenant, token=owner.token)
        self.owned.now -= 1
        return scope

    async def request(self) -> None:
        """Send one random request of a random owner, mostly to an agent of its own."""
        owner = self.rng.choice(OWNERS)
        mine = [agent for agent, found in self.expected.items() if found.owner == owner]
        if not mine or (len(mine) < 4 and self.rng.random() < 0.1):
            await self.create(owner)
            return
        anyone = [*self.expected, ManagedAgentId("agt_" + "0" * 26)]
        agent = self.rng.choice(mine if self.rng.random() < 0.7 else anyone)
        works = {self.send: 6, self.begin: 5, self.end: 5, self.tick: 2, self.change: 3, self.read_run: 4, self.delete: 1}
        (work,) = self.rng.choices([*works], [*works.values()])
        scope = self.scope(owner)
        if agent in mine:
            await work(scope, agent, self.expected[agent])
        else:
            await self.refuse(scope, agent)
        await self.check(owner)

    async def create(self, owner: Owner) -> None:
        name = f"helper {self.rng.random()}"
        agent = await self.owned.create(self.scope(owner), name=name)
        self.expected[agent.id] = Expected(owner, name)

    async def refuse(self, scope: Scope, agent: ManagedAgentId) -> None:
        """Every route of an agent begins with one of these calls."""
        self.counts["refused"] += 1
        agents = self.owned.agents
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: agents.get(scope, agent),
            lambda: agents.send(scope, agent, "mine"),
            lambda: agents.delete(scope, agent),
            lambda: agents.patch(scope, agent, PatchManagedAgent(name="mine")),
        ]
        for call in calls:
            with pytest.raises(AgentNotFound):
                await call()

    async def send(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        content = f"{expected.name} {self.rng.random()}" + "x" * self.rng.choice([0, 0, INLINE_BYTES])
        with pytest.raises(AgentPaused) if expected.paused else nullcontext():
            message = await self.owned.agents.send(scope, agent, content)
            expected.messages.append((content, None))
            assert message.seq == len(expected.messages)
            self.counts["sent"] += 1

    async def begin(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        """Start a run, streamed or queued, with a message of its own if it is streamed."""
        found = await self.owned.agents.get(scope, agent)
        trigger = self.rng.choice([RunTrigger.MESSAGE, RunTrigger.RUN])
        run, content = new_run(found, trigger, "t", self.owned.now), None
        if trigger is RunTrigger.MESSAGE:
            content = f"{expected.name} {self.rng.random()}"
        with pytest.raises(expected.refusal) if expected.refusal else nullcontext():
            await start(scope.store, found, run, content, self.owned.now)
            expected.messages += [(content, None)] if content is not None else []
            expected.active, expected.runs[run.id] = run.id, run.status
            self.counts["started"] += 1

    async def end(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        """Begin the active run if it is queued, and end it in one of three ways."""
        if expected.active is None:
            return
        store, run = scope.store, await runs.read_run(scope.store, agent, expected.active)
        way, at = self.rng.randrange(3), self.owned.now
        if way == 0 and run.status is RunStatus.QUEUED:
            ended = await skip_queued(store, run, at)
        elif way == 1:
            ended = await fail(store, run, ERROR, at)
            expected.failed = True
        else:
            if run.status is RunStatus.QUEUED:
                begun = await runs.begin(store, run, at)
                assert begun is not None
                run = begun
            pending = await mailbox.pending(store, await self.owned.agents.get(scope, agent))
            waiting = [number for number, (_, reader) in enumerate(expected.messages) if reader is None]
            assert [message.content for message in pending] == [expected.messages[number][0] for number in waiting]
            answer = f"{expected.name} answers {self.rng.random()}"
            writes = await success(store, run, answer, pending, at).writes(outcome())
            await store.table.transact(writes, token=run.id)
            for number in waiting:
                expected.messages[number] = (expected.messages[number][0], run.id)
            expected.messages.append((answer, run.id))
            expected.failed = False
            ended = await runs.read_run(store, agent, run.id)
        assert ended is not None
        assert ended.status.is_final
        expected.active, expected.runs[run.id] = None, ended.status
        self.counts[ended.status] += 1

    async def tick(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        """Skip a tick, as during a run."""
        found = await self.owned.agents.get(scope, agent)
        skipped = await skip(scope.store, new_run(found, RunTrigger.SCHEDULE, "t", self.owned.now), self.owned.now)
        expected.runs[skipped.id] = RunStatus.SKIPPED

    async def change(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        expected.name = f"renamed {self.rng.random()}"
        expected.paused = self.rng.random() < 0.3
        found = await self.owned.agents.get(scope, agent)
        await self.owned.patch(found, scope, name=expected.name, paused=expected.paused)

    async def read_run(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        """Read a run of any agent as one of this agent."""
        all_runs = [run for found in self.expected.values() for run in found.runs]
        if not all_runs:
            return
        run = self.rng.choice(all_runs)
        if run in expected.runs:
            assert (await runs.read_run(scope.store, agent, run)).status is expected.runs[run]
        else:
            with pytest.raises(RunNotFound):
                await runs.read_run(scope.store, agent, run)
            self.counts["foreign_runs"] += 1

    async def delete(self, scope: Scope, agent: ManagedAgentId, expected: Expected) -> None:
        if expected.active is not None:
            with pytest.raises(SessionBusy):
                await self.owned.agents.delete(scope, agent)
            return
        await self.owned.agents.delete(scope, agent)
        del self.expected[agent]
        self.counts["deleted"] += 1

    async def check(self, owner: Owner) -> None:
        """Compare the list of ``owner`` with the model."""
        listed = await self.owned.listed(self.scope(owner), limit=3)
        expected = {agent: found for agent, found in self.expected.items() if found.owner == owner}
        assert [(view.id, view.name, view.status.value) for view in listed] == [
            (agent, expected[agent].name, expected[agent].status) for agent in sorted(expected, reverse=True)
        ]

    async def check_everything(self) -> None:
        """Compare all mailboxes and runs with the model, and the table with both: nothing else is stored."""
        for agent, expected in self.expected.items():
            store = self.scope(expected.owner).store
            messages = await self.mailbox(store, agent)
            assert [(message.content, message.run_id) for message in messages] == expected.messages
            assert all((message.status is MessageStatus.PENDING) is (message.run_id is None) for message in messages)
            page = await runs.page(store, agent, None, 1000)
            assert {view.id: view.status for view in page.runs} == expected.runs
        stored = {str(item["pk"]) for item in self.owned.stored() if "#MAGENT#" in str(item["pk"])}
        assert stored == {f"T#{found.owner.tenant}#MAGENT#{agent}" for agent, found in self.expected.items()}

    async def mailbox(self, store: TenantStore, agent: ManagedAgentId) -> list[MessageView]:
        found, cursor = list[MessageView](), None
        while True:
            page = await mailbox.page(store, agent, cursor, 50)
            found += page.messages
            cursor = page.next_cursor
            if cursor is None:
                return found


async def test_no_owner_sees_or_changes_what_belongs_to_another(owned: OwnedAgents) -> None:
    world = World(owned)
    for _ in range(REQUESTS):
        await world.request()
    await world.check_everything()
    assert {"refused", "sent", "started", "succeeded", "failed", "skipped", "deleted", "foreign_runs"} <= world.counts.keys()
