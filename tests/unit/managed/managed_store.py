"""Managed agents on stores in memory, with a clock that the test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from spass.core.cost import NO_COST
from spass.core.errors import TurnLost
from spass.core.ids import ManagedAgentId, RequestId, RunId, TenantId, UserId, new_id, random_suffix
from spass.core.messages import TokenUsage
from spass.core.run_result import AgentRun, RunResult
from spass.core.time import timestamp
from spass.managed import mailbox
from spass.managed.records import Direction, MailboxMessage, ManagedAgent, MessageStatus, Run, RunTrigger, find_agent, read_agent
from spass.managed.run_start import new_run, start
from spass.managed.runs import RunSuccess, load_run
from spass.store import keys
from spass.store.codec import encode
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Put, Write
from spass.testing.aws import MemoryAws

ANA = UserId("ana")
TENANT = TenantId("demo")
TOKEN = "token-1"


@dataclass
class ManagedStore:
    """One tenant's managed agents. ``now`` is in seconds since the epoch."""

    now: float = 1_800_000_000.0
    tenant: TenantId = TENANT
    aws: MemoryAws = field(init=False)

    def __post_init__(self) -> None:
        self.aws = MemoryAws(clock=lambda: self.now)

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(self.tenant)

    async def create(self, owner: UserId = ANA) -> ManagedAgent:
        """Put an agent."""
        at = timestamp(self.now)
        agent = ManagedAgent(
            id=ManagedAgentId(new_id("agt")),
            name="helper",
            agent="operative",
            owner=owner,
            token_id=TOKEN,
            created_at=at,
            updated_at=at,
        )
        store = self.store
        await store.table.write(Put(keys.managed_agent(store.tenant, agent.id), encode(agent)))
        await store.table.write(Put(keys.user_managed(store.tenant, owner, agent.id), {"created_at": at}))
        return agent

    async def agent(self, agent: ManagedAgent) -> ManagedAgent:
        """Return the agent as it is stored."""
        return await read_agent(self.store, agent.owner, agent.id)

    async def pause(self, agent: ManagedAgent, paused: bool = True) -> None:
        found = await find_agent(self.store, agent.id)
        assert found is not None
        changed = encode(replace(found, paused=paused))
        await self.store.table.write(Put(keys.managed_agent(self.tenant, agent.id), changed))

    async def put(self, agent: ManagedAgent, content: str) -> MailboxMessage:
        """Put a message as a request does, which reads the agent first."""
        return await mailbox.put(self.store, await self.agent(agent), content, self.now)

    async def start(
        self,
        agent: ManagedAgent,
        content: str | None = None,
        *,
        trigger: RunTrigger = RunTrigger.RUN,
        own_input: str | None = None,
        run: RunId | None = None,
    ) -> Run:
        """Start a run as a request does."""
        found = await self.agent(agent)
        return await start(
            self.store, found, new_run(found, trigger, TOKEN, self.now, run=run, own_input=own_input), content, self.now
        )

    async def run(self, run: Run) -> Run:
        """Return the run as it is stored."""
        return await load_run(self.store, run.agent_id, run.id)

    async def finish(self, run: Run, content: str, delivered: Sequence[MailboxMessage] = ()) -> bool:
        """Commit a run as a turn does: in one transaction, with newer writes if a message came in between. Return False if the
        run is not active any more."""
        try:
            commit = success(self.store, run, content, delivered, self.now)
            writes: Sequence[Write] | None = await commit.writes(outcome())
        except TurnLost:
            return False
        for _ in range(10):
            if writes is None:
                return False
            try:
                await self.store.table.transact(writes, token=random_suffix())
            except TransactionFailed:
                writes = await commit.renew()
            else:
                return True
        raise AssertionError("the run could not be committed")

    async def messages(self, agent: ManagedAgent) -> list[tuple[int, Direction, str, MessageStatus, RunId | None]]:
        """Return the whole mailbox, page by page."""
        found, cursor = list[tuple[int, Direction, str, MessageStatus, RunId | None]](), None
        while True:
            page = await mailbox.page(self.store, agent.id, cursor, 7)
            found += [(view.seq, view.direction, view.content, view.status, view.run_id) for view in page.messages]
            cursor = page.next_cursor
            if cursor is None:
                return found

    def pending_work(self) -> list[str]:
        """Return the sort keys of the items that the sweep looks after."""
        return sorted(str(item["sk"]) for item in self.items(keys.pending_partition(self.tenant)))

    def items(self, partition: str) -> list[Item]:
        return [item for item in self.aws.table.items() if item["pk"] == partition]


def success(store: TenantStore, run: Run, content: str, delivered: Sequence[MailboxMessage], now: float) -> RunSuccess:
    """Return the end of ``run``, which has answered ``content``."""
    return RunSuccess(store, run, delivered, content, lambda: now)


def outcome() -> RunResult:
    """Return the outcome of a turn with two model calls. The stream shows more than its answer."""
    run = AgentRun(RequestId("req_1"), "operative", "operative", "tiny")
    cost = replace(NO_COST, usd=Decimal("0.000125"))
    return RunResult(run, "the last step", timestamp(0), usage=TokenUsage(30, 12), cost=cost, turns=2)
