"""Begin, read, list and end the runs of managed agents, and find the lost ones.

Each end is one transaction, on condition that the run is still the agent's active one. So a late or repeated end has no effect.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from spass.core.cost import decimal_text
from spass.core.errors import StorageUnavailable, TurnLost
from spass.core.ids import ManagedAgentId, RunId, id_pattern, random_suffix
from spass.core.messages import Json
from spass.core.paging import decode_cursor, fill_page
from spass.core.run_result import RunResult
from spass.core.time import Clock, epoch_s, timestamp
from spass.journal.head import read_head, stream_digest
from spass.managed.mailbox import NewMessage, delete_text, delivery, load_texts, new_message
from spass.managed.records import (
    IS_OPEN,
    MAX_ATTEMPTS,
    Direction,
    MailboxMessage,
    ManagedAgent,
    Run,
    RunStatus,
    RunTrigger,
    encode_error,
    find_agent,
    run_key,
    run_not_found,
)
from spass.managed.responses import RunPage, RunView
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.codec import decode, encode
from spass.store.leases import LEASE_SECONDS
from spass.store.table import ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, AtMost, Delete, Equals, Item, Update, Value, Write

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
    """
    item = await store.table.get(keys.managed_run(store.tenant, agent, run))
    if item is None:
        raise run_not_found()
    return decode(Run, item)


async def load_run(store: TenantStore, agent: ManagedAgentId, run: RunId) -> Run:
    """Return a run of the agent, with its input.

    Raises:
        RunNotFound: the agent has no such run.
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
    """End the active run of ``agent`` as failed if its worker died and nothing will begin it again. Return whether it is over."""
    if agent.active_run is None:
        return True
    item = await store.table.get(keys.managed_run(store.tenant, agent.id, agent.active_run))
    run = decode(Run, item) if item is not None else None
    if run is None or run.status.is_final:
        return True
    if not (run.trigger is RunTrigger.MESSAGE or run.attempts >= MAX_ATTEMPTS) or not await is_lost(store, agent, run, now):
        return False
    ended = await fail_lost(store, run, now)
    return ended is None or ended.status.is_final


async def is_lost(store: TenantStore, agent: ManagedAgent, run: Run, now: float) -> bool:
    """Return whether ``run`` was begun and its worker died: it has begun a minute ago or longer, and no lease of its stream is
    live. The worker claims the stream, which has a lease, within this minute."""
    if run.begun_at is None or now < epoch_s(run.begun_at) + LEASE_SECONDS:
        return False
    head = await read_head(store, stream_digest(agent.owner, agent.stream_agent, run.id))
    return head is None or now >= head.expires_at


async def with_input(store: TenantStore, item: Item) -> Run:
    """Return the run in an item, with its input. Errors are those of ``load_texts``."""
    run = decode(Run, item)
    return replace(run, input=(await load_texts(store, [item]))[0]) if "text_bytes" in item else run


@dataclass(slots=True)
class RunSuccess:
    """The end of ``run`` as succeeded, for the transaction that records its turn (``Renewable``): the answer in the mailbox,
    the messages ``delivered`` to the model, the run's end, and the agent's counters. ``text`` is the answer, as the stream shows
    it."""

    store: TenantStore
    run: Run
    delivered: Sequence[MailboxMessage]
    text: str
    clock: Clock
    _values: Mapping[str, Value] = field(default_factory=dict, init=False)
    _answer: NewMessage | None = field(default=None, init=False)

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        """Return the writes.

        Raises:
            TurnLost: the run was ended meanwhile, because it looked lost.
        """
        agent, now = await find_agent(self.store, self.run.agent_id), self.clock()
        if agent is None or agent.active_run != self.run.id:
            raise run_lost()
        self._values = {
            "status": RunStatus.SUCCEEDED.value,
            "turns": outcome.turns,
            "usage": encode(outcome.usage),
            "cost_usd": decimal_text(outcome.cost.usd),
            "finished_at": timestamp(now),
        }
        self._answer = await new_message(self.store, agent, Direction.AGENT_TO_USER, self.text, now, self.run.id)
        return self._writes(agent, self._answer)

    async def renew(self) -> Sequence[Write] | None:
        """Return the writes for the newest number of the mailbox, or None if the run is not active any more."""
        agent, answer = await find_agent(self.store, self.run.agent_id), self._answer
        assert answer is not None  # noqa: S101 (``writes`` came before)
        if agent is not None and agent.active_run == self.run.id:
            return self._writes(agent, answer)
        with suppress(StorageUnavailable):
            await delete_text(self.store, answer.text)
        return None

    def _writes(self, agent: ManagedAgent, answer: NewMessage) -> Sequence[Write]:
        """Return the writes for the next number of the mailbox of ``agent``."""
        store, run = self.store, self.run
        counters: dict[str, Value] = {
            "next_seq": agent.next_seq + 1,
            "delivered_seq": max((agent.delivered_seq, *(message.seq for message in self.delivered))),
            "pending": agent.pending - len(self.delivered),
        }
        return [
            Update(
                keys.managed_agent(store.tenant, agent.id),
                set=counters,
                remove=("active_run", "error"),
                when=_is_active(run) & Equals("next_seq", agent.next_seq),
            ),
            answer.write(store, agent.id, agent.next_seq),
            *(delivery(store, agent.id, message, run.id) for message in self.delivered),
            Update(run_key(store, run), set=self._values, when=IS_OPEN),
            Delete(keys.pending_run(store.tenant, agent.id, run.id)),
        ]


async def fail(store: TenantStore, run: Run, error: Mapping[str, Json], now: float) -> Run | None:
    """End ``run`` as failed with ``error`` (``code`` and ``message``). Its messages stay pending. Return the run as it is then:
    it stays as it is if it is over, or if it was begun again since ``run`` was read. None: the agent was deleted.

    Raises:
        StorageUnavailable: the table does not answer; whether the run is ended is unknown.
    """
    stored_error = encode_error(error)
    values: dict[str, Value] = {"status": RunStatus.FAILED.value, "finished_at": timestamp(now), "error": stored_error}
    return await _end(store, run, values, {"error": stored_error})


async def fail_lost(store: TenantStore, run: Run, now: float) -> Run | None:
    """End ``run`` as failed because its worker died. Return the run and raise the same errors as ``fail``."""
    error = run_lost()
    return await fail(store, run, {"code": error.code, "message": error.message}, now)


async def skip_queued(store: TenantStore, run: Run, now: float) -> Run | None:
    """End ``run`` as skipped if it has not begun. Its messages stay pending. Return the run as it is then, which may be running.
    None: the agent was deleted.

    Raises:
        StorageUnavailable: the table does not answer; whether the run is ended is unknown.
    """
    values: dict[str, Value] = {"status": RunStatus.SKIPPED.value, "finished_at": timestamp(now)}
    return await _end(store, run, values, {}) if run.status is RunStatus.QUEUED else run


async def _end(store: TenantStore, run: Run, values: Mapping[str, Value], of_agent: Mapping[str, Value]) -> Run | None:
    """End ``run`` unless it is over or was begun again. Return it as it is then, or None if the agent was deleted."""
    writes: list[Write] = [
        Update(run_key(store, run), set=values, when=IS_OPEN & Equals("attempts", run.attempts)),
        Update(keys.managed_agent(store.tenant, run.agent_id), set=of_agent, remove=("active_run",), when=_is_active(run)),
        Delete(keys.pending_run(store.tenant, run.agent_id, run.id)),
    ]
    with suppress(TransactionFailed):
        await store.table.transact(writes, token=random_suffix())
    item = await store.table.get(run_key(store, run))
    return decode(Run, item) if item is not None else None


def run_lost() -> TurnLost:
    """Return the error of a run whose worker died."""
    return TurnLost("The worker of this run died, and nothing was recorded. The messages are still pending; run the agent again.")


def _is_active(run: Run) -> Equals:
    """Return the condition on the agent's item that ``run`` has not ended."""
    return Equals("active_run", run.id)
