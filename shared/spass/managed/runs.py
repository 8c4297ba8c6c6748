"""Begin, read and list the runs of managed agents, and find the lost ones."""

import re
from dataclasses import replace
from typing import Final

from spass.core.ids import ManagedAgentId, RunId, id_pattern, random_suffix
from spass.core.paging import decode_cursor, fill_page
from spass.core.time import epoch_s, timestamp
from spass.journal.head import read_head, stream_digest
from spass.managed.lookup import IS_OPEN, run_key, run_not_found
from spass.managed.records import MAX_ATTEMPTS, ManagedAgent, Run, RunStatus, RunTrigger
from spass.managed.responses import RunPage, RunView
from spass.managed.run_end import fail, run_lost
from spass.managed.texts import load_texts
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.codec import decode, encode
from spass.store.leases import LEASE_SECONDS
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, AtMost, Equals, Item, Update, Value

_POSITION: Final = re.compile(id_pattern("run"))


def begun(run: Run, now: float) -> Run:
    """Return ``run`` as it is when this process begins it ``now``, in seconds since the epoch."""
    return replace(run, status=RunStatus.RUNNING, attempts=run.attempts + 1, begun_at=timestamp(now), begun_by=random_suffix())


async def begin(store: TenantStore, run: Run, now: float) -> Run | None:
    """Begin a queued run, or begin it again after its worker died. Return it as it is then, or None if it is over, or if another
    worker has begun it within the last minute. ``run`` is the run as it was read. The caller counts its ``attempts``.

    Raises:
        StorageUnavailable: the table does not answer; whether the run has begun is unknown.
    """
    new = begun(run, now)
    values: dict[str, Value] = {
        name: value for name, value in encode(new).items() if name in ("status", "attempts", "begun_at", "begun_by")
    }
    is_free = Absent("begun_at") | AtMost("begun_at", timestamp(now - LEASE_SECONDS))
    when = IS_OPEN & Equals("attempts", run.attempts) & is_free
    try:
        await store.table.write(Update(run_key(store, run), set=values, when=when))
    except ConditionFailed as failure:
        is_mine = failure.item is not None and failure.item.get("begun_by") == new.begun_by
        return new if is_mine else None
    return new


async def read_run(store: TenantStore, agent: ManagedAgentId, run: RunId) -> Run:
    """Return a run of the agent, without its input, which may be in the bucket. The caller has checked the agent's owner.

    Raises:
        RunNotFound: the agent has no such run.
        StorageUnavailable: the table does not answer.
    """
    item = await store.table.get(keys.managed_run(store.tenant, agent, run))
    if item is None:
        raise run_not_found()
    return decode(Run, item)


async def load_run(store: TenantStore, agent: ManagedAgentId, run: RunId) -> Run:
    """Return a run of the agent, with its input.

    Raises:
        RunNotFound: the agent has no such run.
        StorageUnavailable: the table or the bucket does not answer.
    """
    item = await store.table.get(keys.managed_run(store.tenant, agent, run))
    if item is None:
        raise run_not_found()
    try:
        return await with_input(store, item)
    except ObjectMissing:
        raise run_not_found() from None


async def page(store: TenantStore, agent: ManagedAgentId, cursor: str | None, limit: int) -> RunPage:
    """Return at most ``limit`` runs of the agent from ``cursor`` on, newest first.

    Raises:
        InvalidRequest: the cursor does not belong to this list.
        StorageUnavailable: the table does not answer.
    """
    scope = f"runs|{store.tenant}|{agent}"
    last = RunId(decode_cursor(scope, cursor, _POSITION)) if cursor is not None else None
    after = keys.managed_run(store.tenant, agent, last).sk if last is not None else None
    pages = store.table.pages(
        keys.managed_partition(store.tenant, agent), prefix=keys.RUN_PREFIX, after=after, size=limit + 1, newest_first=True
    )
    views = ((run.id, RunView.of(run)) async for items in pages for run in (decode(Run, item) for item in items))
    runs, next_cursor = await fill_page(scope, views, limit)
    return RunPage(runs=runs, next_cursor=next_cursor)


async def settle_lost(store: TenantStore, agent: ManagedAgent, now: float) -> bool:
    """End the active run of ``agent`` as failed if its worker died and nothing will begin it again. Return whether it is over.

    Raises:
        StorageUnavailable: the table does not answer.
    """
    if agent.active_run is None:
        return True
    item = await store.table.get(keys.managed_run(store.tenant, agent.id, agent.active_run))
    run = decode(Run, item) if item is not None else None
    if run is None or run.status.is_final:
        return True
    if not (run.trigger is RunTrigger.MESSAGE or run.attempts >= MAX_ATTEMPTS) or not await is_lost(store, agent, run, now):
        return False
    error = run_lost()
    ended = await fail(store, run, {"code": error.code, "message": error.message}, now)
    return ended is None or ended.status.is_final


async def is_lost(store: TenantStore, agent: ManagedAgent, run: Run, now: float) -> bool:
    """Return whether ``run`` was begun and its worker died: it has begun a minute ago or longer, and no lease of its stream is
    live. The worker claims the stream, which has a lease, within this minute.

    Raises:
        StorageUnavailable: the table does not answer.
    """
    if run.begun_at is None or now < epoch_s(run.begun_at) + LEASE_SECONDS:
        return False
    head = await read_head(store, stream_digest(agent.owner, agent.stream_agent, run.id))
    return head is None or now >= head.expires_at


async def with_input(store: TenantStore, item: Item) -> Run:
    """Return the run in an item, with its input. Errors are those of ``load_texts``."""
    run = decode(Run, item)
    return replace(run, input=(await load_texts(store, [item]))[0]) if "text_bytes" in item else run
