"""Delete a managed agent with everything that belongs to it.

One transaction hides the agent, while no run of it is active, and puts an item into the tenant's list of pending work. Then the
rest is removed: the schedule's entry, the operator with its state and notes, its sessions, the mailbox, the runs, and at last the
item of the agent. A second DELETE or the sweep continues an interrupted deletion.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from spass.core.errors import CompactionInProgress, SessionBusy, SessionNotFound
from spass.core.ids import ManagedAgentId, SessionId, UserId, random_suffix
from spass.core.tasks import run_concurrently
from spass.core.time import Clock, Deadline, timestamp
from spass.managed.mailbox import agent_folder
from spass.managed.records import ManagedAgent, agent_not_found, find_agent, run_active
from spass.managed.runs import settle_lost
from spass.managed.schedules import ScheduleWriter
from spass.memory.state import read_state
from spass.sessions.deletion import delete_session
from spass.sessions.operator_requests import delete_operator
from spass.sessions.session import decode_session
from spass.store import keys
from spass.store.codec import decode
from spass.store.table import ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_EXISTS, Absent, Delete, Put, Update, Write

_ITEMS_PER_BATCH: Final = 50
_HIDE_ATTEMPTS: Final = 3


async def delete_agent(
    store: TenantStore,
    owner: UserId,
    agent_id: ManagedAgentId,
    schedules: ScheduleWriter | None,
    deadline: Deadline,
    clock: Clock,
) -> None:
    """Delete an agent of ``owner``. Errors are those of ``ManagedAgents.delete``. If another request holds the agent's session,
    or if the deadline comes, the sweep deletes the rest."""
    agent = await find_agent(store, agent_id)
    if agent is None or agent.owner != owner:
        raise agent_not_found()
    if agent.deleted_at is None:
        await _hide(store, agent, clock())
    with suppress(SessionBusy, CompactionInProgress):
        await finish_deletion(store, agent_id, schedules, deadline, clock)


async def finish_deletion(
    store: TenantStore, agent_id: ManagedAgentId, schedules: ScheduleWriter | None, deadline: Deadline, clock: Clock
) -> bool:
    """Remove everything that belongs to a hidden agent. A repeated call continues an interrupted one. An agent that is not hidden
    stays as it is. Return False if the deadline came before all was removed: a schedule may have left millions of runs.

    Raises:
        SessionBusy, CompactionInProgress: another request holds the agent's session.
        StorageUnavailable: the table, the bucket or the scheduler does not answer; repeat the call.
    """
    agent = await find_agent(store, agent_id)
    if agent is not None and agent.deleted_at is None:
        return True
    if schedules is not None:
        await schedules.remove(store, agent_id)
    if agent is not None:
        sessions = await _fix_sessions(store, agent)
        await delete_operator(store, agent.operator, clock)
        if not await _delete_sessions(store, sessions, deadline, clock()):
            return False
    if not await _remove_items(store, agent_id, deadline):
        return False
    await store.table.write(Delete(keys.pending_schedule(store.tenant, agent_id)))
    last = [Delete(keys.managed_agent(store.tenant, agent_id)), Delete(keys.pending_deletion(store.tenant, agent_id))]
    await store.table.transact(last, token=random_suffix())
    return True


async def _hide(store: TenantStore, agent: ManagedAgent, now: float) -> None:
    """Mark the agent as deleted and remove it from its owner's list, unless a run of it is active."""
    at = timestamp(now)
    writes: list[Write] = [
        Update(
            keys.managed_agent(store.tenant, agent.id),
            set={"deleted_at": at},
            when=ITEM_EXISTS & Absent("active_run") & Absent("deleted_at"),
        ),
        Delete(keys.user_managed(store.tenant, agent.owner, agent.id)),
        Put(keys.pending_deletion(store.tenant, agent.id), {"created_at": at}),
    ]
    for _ in range(_HIDE_ATTEMPTS):
        try:
            await store.table.transact(writes, token=random_suffix())
        except TransactionFailed as failure:
            item = failure.failures.get(0)
            if item is None:
                raise agent_not_found() from None
            newest = decode(ManagedAgent, item)
            if newest.deleted_at is not None:
                return
            if not await settle_lost(store, newest, now):
                raise run_active(newest) from None
        else:
            return
    raise run_active(agent)


async def _fix_sessions(store: TenantStore, agent: ManagedAgent) -> Sequence[SessionId]:
    """Return all sessions of the agent. The first call stores their ids with the pending work, because a deleted session is in no
    list, and a later call has to finish it."""
    key = keys.pending_deletion(store.tenant, agent.id)
    found = [*dict.fromkeys([*await _listed_sessions(store, agent), *await _chain(store, agent)])]
    try:
        await store.table.write(Update(key, set={"sessions": found}, when=ITEM_EXISTS & Absent("sessions")))
    except ConditionFailed as failure:
        stored = (failure.item or {}).get("sessions", [])
        return [SessionId(str(session)) for session in stored] if isinstance(stored, list) else []
    return found


async def _listed_sessions(store: TenantStore, agent: ManagedAgent) -> Sequence[SessionId]:
    """Return the agent's sessions in its owner's list, also those that its operator was told to forget."""
    if agent.session_agent is None:
        return ()
    partition = keys.user_sessions_partition(store.tenant, agent.owner, agent.session_agent)
    items = await store.table.query(partition, prefix=keys.USER_SESSION_PREFIX)
    return [SessionId(str(item["id"])) for item in items if item.get("operator") == agent.id]


async def _chain(store: TenantStore, agent: ManagedAgent) -> Sequence[SessionId]:
    """Return the session of the agent's operator with its ancestors and successors."""
    state = await read_state(store, agent.operator)
    to_read = [state.session] if state is not None else []
    chain: list[SessionId] = []
    while to_read:
        session = to_read.pop()
        chain.append(session)
        item = await store.table.get(keys.session_head(store.tenant, session))
        if item is None:
            continue
        head = decode_session(item)
        linked = (head.parent_session_id, head.successor_session_id)
        to_read += [other for other in linked if other is not None and other not in chain]
    return chain


async def _delete_sessions(store: TenantStore, sessions: Sequence[SessionId], deadline: Deadline, now: float) -> bool:
    """Delete all ``sessions``, and at last the heads that the members of a chain keep for their neighbours. Return False if the
    deadline came."""
    for session in sessions:
        if not deadline.remaining():
            return False
        item = await store.table.get(keys.session_head(store.tenant, session))
        if item is not None:
            head = decode_session(item)
            with suppress(SessionNotFound):  # an earlier call has finished this one
                await delete_session(store, session, head.agent, head.user, now)
    await run_concurrently([store.table.write(Delete(keys.session_head(store.tenant, session))) for session in sessions])
    return True


async def _remove_items(store: TenantStore, agent: ManagedAgentId, deadline: Deadline) -> bool:
    """Remove the agent's messages, its runs, and all objects in its folder of the bucket. Return False if the deadline came."""
    partition = keys.managed_partition(store.tenant, agent)
    for prefix in (keys.MESSAGE_PREFIX, keys.RUN_PREFIX):
        while items := await store.table.query(partition, prefix=prefix, limit=_ITEMS_PER_BATCH):
            if not deadline.remaining():
                return False
            await store.table.delete(items)
    if texts := await store.objects.list_keys(agent_folder(agent)):
        await store.objects.delete(texts)
    return True
