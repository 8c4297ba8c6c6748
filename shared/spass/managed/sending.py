"""Send queued runs to their queue: as many of a tenant as it may have out, and the rest in order when one of them ends."""

import asyncio
from typing import Final

from spass.core.errors import StorageUnavailable
from spass.core.ids import ManagedAgentId, RunId
from spass.core.jobs import RunAgent, WorkKind, body_of
from spass.core.time import timestamp
from spass.core.traceparent import current_traceparent
from spass.managed.records import IS_OPEN, Run, RunStatus, run_key
from spass.redaction.log import failure_line, write_line
from spass.store import keys
from spass.store.codec import decode
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, AtMost, Equals, Update

LOST_SECONDS: Final = 60
"""Seconds without a beginning after which a run may not have been sent."""
_SEND_DELAYS: Final = (0.1, 0.4)  # seconds before each retry


def work_name(agent: ManagedAgentId, run: RunId) -> str:
    """Return the name of a run among the work of its tenant."""
    return f"{agent}#{run}"


async def send_run(store: TenantStore, run: Run) -> None:
    """Send a queued run to its queue, or put it into the tenant's line. If that fails, the next request or tick of its agent does
    it (``send_lost``), or the hourly sweep."""
    for delay in (*_SEND_DELAYS, None):
        try:
            await _send(store, run)
        except StorageUnavailable as error:
            if delay is None:
                write_line({**failure_line(error, ""), "event": "run_not_sent", "run_id": run.id})
            else:
                await asyncio.sleep(delay)
        else:
            return


async def send_lost(store: TenantStore, agent: ManagedAgentId, run: RunId, now: float) -> None:
    """Send a queued run again if it has not begun for a minute: the process that started it may have died before it sent it. The
    run may also only wait, so this happens once a minute."""
    before = timestamp(now - LOST_SECONDS)
    is_waiting = Equals("status", RunStatus.QUEUED.value) & Absent("begun_at") & AtMost("created_at", before)
    when = is_waiting & (Absent("due_at") | AtMost("due_at", before))
    try:
        item = await store.table.write(
            Update(keys.managed_run(store.tenant, agent, run), set={"due_at": timestamp(now)}, when=when)
        )
    except ConditionFailed:
        return
    if item is not None:
        await send_run(store, decode(Run, item))


async def put_in_line(store: TenantStore, run: Run) -> None:
    """Put a queued run into the tenant's line. It is sent at once if there is a place."""
    body = body_of(_job(store, run), current_traceparent())
    await store.line.wait(WorkKind.RUNS, work_name(run.agent_id, run.id), run.created_at, body)


async def take_place(store: TenantStore, run: Run) -> bool:
    """Take a place for a queued run, or keep the one that it has. If there is none, put the run into the tenant's line and return
    False."""
    if await store.line.take(WorkKind.RUNS, work_name(run.agent_id, run.id)):
        return True
    await put_in_line(store, run)
    return False


async def take_back(store: TenantStore, run: Run, due: float) -> bool:
    """Make a run that this process has begun a queued one, as if it had not begun. Return False if it is over, or if another
    worker has begun it. The caller gives its place back, and sends it so that it is delivered at ``due``, in seconds since the
    epoch.

    Raises:
        StorageUnavailable: the table does not answer; whether the run is queued is unknown.
    """
    attempts = run.attempts - 1
    undo = Update(
        run_key(store, run),
        set={
            "status": RunStatus.QUEUED.value,
            "attempts": attempts,
            "due_at": timestamp(due),
            "put_backs": run.put_backs + 1,
        },
        remove=("begun_at", "begun_by"),
        when=IS_OPEN & Equals("begun_by", run.begun_by),
    )
    try:
        await store.table.write(undo)
    except ConditionFailed as failure:  # after a lost reply, the first attempt may have taken effect
        item = failure.item or {}
        return item.get("status") == RunStatus.QUEUED and item.get("attempts") == attempts and "begun_by" not in item
    return True


async def send_later(store: TenantStore, run: Run, seconds: int) -> None:
    """Send a queued run so that it is delivered after ``seconds``. The worker takes a place for it then.

    Raises:
        StorageUnavailable: the queue does not answer.
    """
    await store.jobs.send(_job(store, run), delay=seconds)


async def _send(store: TenantStore, run: Run) -> None:
    if await take_place(store, run):
        await store.jobs.send(_job(store, run))


def _job(store: TenantStore, run: Run) -> RunAgent:
    return RunAgent(store.tenant, run.agent_id, run.id)
