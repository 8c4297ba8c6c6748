"""A managed agent with everything that can belong to one."""

from dataclasses import dataclass, replace

from spass.core.ids import AgentName, SessionId
from spass.core.time import timestamp
from spass.managed import mailbox
from spass.managed.mailbox import INLINE_BYTES
from spass.managed.records import ManagedAgent, Run, RunTrigger
from spass.managed.run_start import new_run, skip, start
from spass.managed.runs import fail
from spass.memory.state import read_state, state_creation
from spass.store import keys
from spass.store.codec import decode
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Put, Update
from tests.unit.managed.managed_store import outcome, success
from tests.unit.managed.owned_agents import OwnedAgents
from tests.unit.sessions.session_chains import ChainBuilder, plain_turn

LONG = "x" * (INLINE_BYTES + 1)
HOURLY = {"expression": "rate(1 hour)", "input": "Look around."}


@dataclass
class Belongings:
    """Agents of one tenant, and what belongs to them."""

    owned: OwnedAgents

    @property
    def store(self) -> TenantStore:
        return self.owned.scope().store

    async def agent(self, user: str = "ana", *, notes: int = 60) -> ManagedAgent:
        """Return an agent with a schedule, two finished runs, a failed and a skipped one, a pending message, a chain of sessions,
        a session that was forgotten, a state, and ``notes``."""
        agent = await self.owned.create(self.owned.scope(user), schedule=HOURLY)
        for content in ("hello", LONG):
            await self.finish(await self.start(agent, content))
        error = {"code": "upstream_error", "message": "The provider failed."}
        await fail(self.store, await self.start(agent, LONG), error, self.owned.now)
        await skip(self.store, new_run(agent, RunTrigger.SCHEDULE, "token-1", self.owned.now), self.owned.now)
        sessions = self.sessions(agent)
        members = await sessions.chain(3)
        forgotten = await sessions.session(plain_turn("secret", LONG * 50))
        await self.file(agent, *members, forgotten)
        await self.point(agent, members[1])
        await self.keep_notes(agent, notes)
        return agent

    def sessions(self, agent: ManagedAgent) -> ChainBuilder:
        return ChainBuilder(self.store, agent.owner, agent.session_agent or AgentName(""), self.owned.now)

    async def file(self, agent: ManagedAgent, *sessions: SessionId) -> None:
        """Mark sessions as those of the agent's operator, as the turns of its runs do."""
        store = self.store
        for session in sessions:
            entry = keys.user_session(store.tenant, agent.owner, agent.session_agent or AgentName(""), session)
            for key in (keys.session_head(store.tenant, session), entry):
                await store.table.write(Update(key, set={"operator": agent.id}))

    async def point(self, agent: ManagedAgent, session: SessionId) -> None:
        """Begin the agent's operator with ``session``."""
        name = agent.session_agent or AgentName("")
        await self.store.table.write(state_creation(self.store, agent.operator, session, name, timestamp(self.owned.now)))

    async def keep_notes(self, agent: ManagedAgent, count: int) -> None:
        state = await read_state(self.store, agent.operator)
        assert state is not None
        for number in range(count):
            key = keys.operator_note(self.store.tenant, agent.owner, agent.operator.id, f"{number:064x}")
            await self.store.table.write(Put(key, {"generation": state.generation, "key": str(number)}))

    async def start(self, agent: ManagedAgent, content: str) -> Run:
        """Start a run with a long input and a message."""
        found = await self.owned.agents.get(self.owned.scope(agent.owner), agent.id)
        run = replace(new_run(found, RunTrigger.RUN, "token-1", self.owned.now), input=LONG)
        return await start(self.store, found, run, content, self.owned.now)

    async def finish(self, run: Run) -> None:
        """Commit a run that has read the whole mailbox, with a long answer."""
        item = await self.store.table.get(keys.managed_agent(self.store.tenant, run.agent_id))
        assert item is not None
        pending = await mailbox.pending(self.store, decode(ManagedAgent, item))
        writes = await success(self.store, run, LONG, pending, self.owned.now).writes(outcome())
        await self.store.table.transact(writes, token=run.id)

    def items(self) -> list[Item]:
        """Return all stored items except the markers of commits, which expire, and the tenant's count of schedules."""
        items = self.owned.aws.table.items()
        return [item for item in items if "#COMMIT#" not in str(item["pk"]) and "#LIMIT#" not in str(item["pk"])]
