"""Create, read, list, change and delete managed agents. Each call acts for the owner of the scope."""

import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spass.calls.scope import Scope
from spass.core.errors import InvalidRequest, NoBackendAvailable, SpassError, StorageUnavailable
from spass.core.ids import AgentName, ManagedAgentId, UserId, id_pattern, new_id
from spass.core.paging import decode_cursor, fill_page
from spass.core.tasks import back_off, map_concurrently
from spass.core.time import Clock, Deadline, timestamp
from spass.core.traceparent import current_traceparent
from spass.managed.records import MailboxMessage, ManagedAgent, check_not_paused, find_agent, read_agent
from spass.managed.responses import ManagedAgentPage, ManagedAgentView
from spass.redaction.log import failure_line, write_line
from spass.store import keys
from spass.store.codec import encode
from spass.store.idempotency import Claim, StoredResponse, put_once
from spass.store.swap import commit
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Equals, Put, Update, Write
from spass.tenancy.config import GatewayConfig

if TYPE_CHECKING:  # functions that only read agents run none
    from spass.agents.ask import Asker
    from spass.agents.engine import Engine
    from spass.agents.spec import AgentSpec
    from spass.managed.body import CreateManagedAgent, PatchManagedAgent
    from spass.managed.schedules import ScheduleWriter
    from spass.managed.sweep import Swept

_POSITION: Final = re.compile(id_pattern("agt"))
_CONFIG: Final = (
    "name",
    "model",
    "tools",
    "system_prompt",
    "params",
    "schedule",
    "paused",
    "token_id",
    "depth",
    "traceparent",
    "version",
    "updated_at",
)
"""The fields that a PATCH may write. Runs and messages change the others meanwhile."""
_USED_BY_RUNS: Final = frozenset({"model", "tools", "system_prompt", "params", "schedule"})
_PATCH_ATTEMPTS: Final = 8
_PATCH_DELAY: Final = 0.05  # seconds, full jitter
_READS_AT_ONCE: Final = 16


class ManagedAgents:
    """The managed agents of all tenants. ``schedules`` returns None if this gateway has no scheduler. ``clock`` returns seconds
    since the epoch."""

    def __init__(
        self,
        config: GatewayConfig,
        asker: "Callable[[], Asker]",
        engine: "Callable[[], Engine]",
        schedules: "Callable[[], ScheduleWriter | None]" = lambda: None,
        clock: Clock = time.time,
    ) -> None:
        self._config = config
        self._asker = asker
        self._engine = engine
        self._schedules = schedules
        self._clock = clock

    async def create(self, scope: Scope, body: "CreateManagedAgent", claim: Claim | None = None) -> ManagedAgent:
        """Create an agent. With a ``claim``, the same transaction stores the answer.

        Raises:
            AgentNotFound, ModelNotFound, ToolNotFound, ModelNotAllowed, InvalidRequest: a value is wrong; nothing is stored.
            TooManySchedules: the tenant has as many schedules as it may have; nothing is stored.
            LeaseLost: another attempt has the claim; nothing is stored.
            StorageUnavailable: the table does not answer; whether the agent exists is unknown.
        """
        for _ in range(_PATCH_ATTEMPTS):
            agent = self._new_agent(scope, body)
            with suppress(TransactionFailed):  # another schedule was stored meanwhile
                await self._put(scope.store, agent, claim)
                if agent.schedule is not None:
                    await self._apply_schedule(scope.store, agent)
                return agent
            await back_off(_PATCH_DELAY)
        raise StorageUnavailable("Too many schedules are stored at once; try again.", retry_after=1)

    def _new_agent(self, scope: Scope, body: "CreateManagedAgent") -> ManagedAgent:
        at = timestamp(self._clock())
        agent = ManagedAgent(
            id=ManagedAgentId(new_id("agt")),
            name=body.name,
            agent=body.agent,
            owner=scope.caller.owner,
            token_id=scope.caller.identity.token_id,
            depth=scope.depth,
            traceparent=current_traceparent(),
            model=body.model,
            tools=body.tools,
            system_prompt=body.system_prompt,
            params=body.params,
            schedule=body.schedule.schedule() if body.schedule is not None else None,
            created_at=at,
            updated_at=at,
        )
        return replace(agent, session_agent=AgentName(self._check_values(scope, agent).name))

    async def _put(self, store: TenantStore, agent: ManagedAgent, claim: Claim | None) -> None:
        writes = [
            Put(keys.managed_agent(store.tenant, agent.id), encode(agent), ITEM_ABSENT),
            Put(keys.user_managed(store.tenant, agent.owner, agent.id), {"created_at": agent.created_at}),
            *(await self._schedule_writes(store, agent) if agent.schedule is not None else ()),
        ]
        response = StoredResponse(ManagedAgentView.of(agent).to_dict(), {})
        await put_once(store, writes, token=agent.id, claim=claim, response=response)

    async def _schedule_writes(self, store: TenantStore, agent: ManagedAgent) -> list[Write]:
        """Return the writes that store the schedule of ``agent``, besides that of the agent: the item that tells the sweep that
        its entry may differ from the table, and one that counts the schedule, if it has ticks."""
        from spass.managed.schedule_bound import count_schedule

        pending = Put(keys.pending_schedule(store.tenant, agent.id), {"version": agent.version})
        if agent.schedule is None or not agent.schedule.enabled:
            return [pending]
        return [pending, await count_schedule(store, agent.id, self._config.bound_of(store.tenant, "schedules"))]

    async def get(self, scope: Scope, agent: ManagedAgentId) -> ManagedAgent:
        """Return an agent of the owner. Errors are those of ``read_agent``."""
        return await read_agent(scope.store, scope.caller.owner, agent)

    async def page(self, scope: Scope, cursor: str | None, limit: int) -> ManagedAgentPage:
        """Return at most ``limit`` agents of the owner from ``cursor`` on, newest first.

        Raises:
            InvalidRequest: the cursor does not belong to this list.
        """
        store, owner = scope.store, scope.caller.owner
        list_scope = f"managed|{store.tenant}|{owner}"
        after = ManagedAgentId(decode_cursor(list_scope, cursor, _POSITION)) if cursor is not None else None
        agents, next_cursor = await fill_page(list_scope, self._views(store, owner, after), limit)
        return ManagedAgentPage(agents=agents, next_cursor=next_cursor)

    async def patch(self, scope: Scope, agent_id: ManagedAgentId, body: "PatchManagedAgent") -> ManagedAgent:
        """Change an agent for its next run, and return it.

        Raises:
            AgentNotFound: the owner has no such agent, or its kind or file does not exist any more.
            ModelNotFound, ToolNotFound, ModelNotAllowed, InvalidRequest: a value is wrong; nothing is changed.
            TooManySchedules: the tenant has as many schedules as it may have; nothing is changed.
            StorageUnavailable: the table does not answer; whether the agent was changed is unknown.
        """
        store, changes = scope.store, body.changes
        for _ in range(_PATCH_ATTEMPTS):
            agent = await read_agent(store, scope.caller.owner, agent_id)
            changed = self._changed(scope, agent, changes)
            attributes = encode(changed)
            writes: list[Write] = [
                Update(
                    keys.managed_agent(store.tenant, agent.id),
                    set={name: attributes[name] for name in _CONFIG if name in attributes},
                    remove=tuple(name for name in _CONFIG if name not in attributes),
                    when=Equals("version", agent.version) & Absent("deleted_at"),
                )
            ]
            if "schedule" in changes:
                writes += await self._schedule_writes(store, changed)
            if not await commit(store, writes):
                if "schedule" in changes:
                    await self._apply_schedule(store, changed)
                return changed
            await back_off(_PATCH_DELAY)
        raise StorageUnavailable("Too many changes of this agent at once; try again.", retry_after=1)

    async def delete(self, scope: Scope, agent: ManagedAgentId) -> None:
        """Delete an agent with everything that belongs to it. A repeated call finishes an interrupted one.

        Raises:
            AgentNotFound: the owner has no such agent.
            SessionBusy: a run of the agent is active; nothing is deleted.
            StorageUnavailable: the table, the bucket or the scheduler does not answer. If the agent is hidden already, the sweep
                deletes the rest.
        """
        from spass.managed.deletion import delete_agent

        await delete_agent(scope.store, scope.caller.owner, agent, self._schedules(), scope.deadline, self._clock)

    async def send(self, scope: Scope, agent_id: ManagedAgentId, content: str, claim: Claim | None = None) -> MailboxMessage:
        """Put a message into the agent's mailbox, where it waits for the next run. With a ``claim``, the same transaction stores
        the answer. An active run whose worker died is ended.

        Raises:
            SpassError: ``check`` or ``mailbox.put`` raised it; they say what is stored then.
        """
        from spass.managed.mailbox import put
        from spass.managed.runs import settle_lost

        agent = await read_agent(scope.store, scope.caller.owner, agent_id)
        check_not_paused(agent)
        self.check(scope, agent)
        await settle_lost(scope.store, agent, self._clock())
        return await put(scope.store, agent, content, self._clock(), claim)

    async def sweep(self, store: TenantStore, deadline: Deadline) -> "Swept":
        """Look after unfinished runs and deletions of a tenant until the deadline. Errors are those of ``ManagedSweep.run``."""
        from spass.managed.sweep import ManagedSweep

        return await ManagedSweep(store, self._schedules(), deadline, self._clock).run()

    def check(self, scope: Scope, agent: ManagedAgent) -> "AgentSpec":
        """Return what ``agent`` runs now. Call this before a message or a run is stored.

        Raises:
            AgentNotFound, ModelNotFound, ToolNotFound, InvalidRequest: the agent cannot be run any more as it was written.
            ModelNotAllowed: the token of the scope may not use the model.
            NoBackendAvailable: no backend serves the model.
            SandboxUnavailable, KindUnavailable: this gateway cannot run the kind.
        """
        from spass.managed.body import choice_of
        from spass.models.backends import is_served

        spec = self._asker().agent(scope, choice_of(agent))
        self._engine().check(scope, spec)
        if not is_served(self._config.llm, spec.model):
            raise NoBackendAvailable(f"No backend serves the model '{spec.model}'.", param="model")
        return spec

    def _changed(self, scope: Scope, agent: ManagedAgent, changes: Mapping[str, Any]) -> ManagedAgent:
        """Return ``agent`` after ``changes``, which are checked."""
        changed = replace(agent, **changes, version=agent.version + 1, updated_at=timestamp(self._clock()))
        if not _USED_BY_RUNS.isdisjoint(changes):
            token = scope.caller.identity.token_id
            changed = replace(changed, token_id=token, depth=scope.depth, traceparent=current_traceparent())
            self._check_values(scope, changed, new_schedule="schedule" in changes)
        return changed

    def _check_values(self, scope: Scope, agent: ManagedAgent, *, new_schedule: bool = True) -> "AgentSpec":
        """Check the values of an agent before they are stored, and return what it would run. An old ``at(…)`` schedule may have
        passed, so only a new schedule is checked.

        Raises:
            AgentNotFound, ModelNotFound, ToolNotFound, ModelNotAllowed, InvalidRequest: a value is wrong.
        """
        from spass.managed.body import check_size, choice_of

        spec = self._asker().agent(scope, choice_of(agent))
        check_size(agent)
        if agent.schedule is not None and new_schedule:
            schedules = self._schedules()
            if schedules is None:
                raise InvalidRequest("This gateway has no scheduler. Omit schedule, and start runs yourself.", param="schedule")
            schedules.check(agent.schedule)
        return spec

    async def _apply_schedule(self, store: TenantStore, agent: ManagedAgent) -> None:
        """Make the entry what the table says. If that fails, the sweep does it: the change is stored already. So this also holds
        for an entry that the scheduler refuses; the sweep reports it every hour."""
        schedules = self._schedules()
        if schedules is None:
            return
        try:
            await schedules.apply(store, agent.id)
        except SpassError as error:
            write_line({**failure_line(error, ""), "event": "schedule_not_applied", "agent": agent.id})

    async def _views(
        self, store: TenantStore, owner: UserId, after: ManagedAgentId | None
    ) -> AsyncGenerator[tuple[str, ManagedAgentView | None], None]:
        pages = store.table.pages(
            keys.user_managed_partition(store.tenant, owner),
            prefix=keys.USER_MANAGED_PREFIX,
            after=keys.user_managed(store.tenant, owner, after).sk if after is not None else None,
            size=_READS_AT_ONCE,
            newest_first=True,
        )
        async for items in pages:
            ids = [ManagedAgentId(str(item["sk"]).removeprefix(keys.USER_MANAGED_PREFIX)) for item in items]
            agents = await map_concurrently(partial(find_agent, store), ids, limit=_READS_AT_ONCE)
            for agent_id, agent in zip(ids, agents, strict=True):
                yield agent_id, ManagedAgentView.of(agent) if agent is not None and agent.deleted_at is None else None
