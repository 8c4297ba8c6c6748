"""Start and skip the runs of a managed agent.

The transaction that puts a run also makes it the agent's active one, so that at most one is active. It puts an item into the
tenant's list of pending work, which exists as long as the run is active: the sweep reads that list, and no idle agent.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spass.core.errors import IdempotencyKeyReused, NothingToRun, StorageUnavailable
from spass.core.ids import RunId, new_id, random_suffix
from spass.core.time import timestamp
from spass.managed.mailbox import (
    NUMBER_ATTEMPTS,
    NewMessage,
    accepts_work,
    counters_after_message,
    delete_text,
    new_message,
    store_text,
    too_many_writers,
    wait_for_number,
)
from spass.managed.records import (
    Direction,
    ManagedAgent,
    Run,
    RunStatus,
    RunTrigger,
    agent_not_found,
    check_not_paused,
    current_agent,
    find_agent,
    run_active,
    run_key,
)
from spass.managed.responses import RunView
from spass.managed.runs import begun, settle_lost, with_input
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.idempotency import Claim, StoredResponse, claim_lost
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, ITEM_EXISTS, Absent, Check, Equals, Item, Put, Update, Value, Write

_RUN, _AGENT = 0, 1  # positions in the transaction


def new_run(
    agent: ManagedAgent,
    trigger: RunTrigger,
    token_id: str,
    now: float,
    *,
    depth: int = 0,
    run: RunId | None = None,
    own_input: str | None = None,
) -> Run:
    """Return a run that is put ``now`` (seconds since the epoch). A streamed message is executed at once; other runs are queued.

    ``depth`` is the number of gateway calls that led to it. ``run`` is an id that was derived from the request or the tick, else
    the id is new.
    """
    at = timestamp(now)
    queued = Run(
        id=run or RunId(new_id("run")),
        agent_id=agent.id,
        trigger=trigger,
        status=RunStatus.QUEUED,
        token_id=token_id,
        depth=depth,
        input=own_input,
        created_at=at,
    )
    return begun(queued, now) if trigger is RunTrigger.MESSAGE else queued


async def start(
    store: TenantStore,
    agent: ManagedAgent,
    run: Run,
    content: str | None,
    now: float,
    claim: Claim | None = None,
) -> Run:
    """Make ``run`` the active run of ``agent``. Put the message ``content``, if there is one, into the mailbox. Return the run.

    If a run with this id was started before by the same request, return that one, whatever its status is. With a ``claim``, the
    same transaction stores the answer. A run whose worker died does not count as active: it is ended first.

    Raises:
        AgentNotFound, AgentPaused: the agent was deleted or is paused; nothing is stored.
        SessionBusy: another run is active (``details.run_id``); nothing is stored.
        NothingToRun: the run has no input, and another one has just taken the pending messages; nothing is stored.
        IdempotencyKeyReused: the run belongs to a request with another body.
        LeaseLost: another attempt has the claim; nothing is stored.
        StorageUnavailable: the table or the bucket does not answer; whether the run has started is unknown.
    """
    message = await new_message(store, agent, Direction.USER_TO_AGENT, content, now) if content is not None else None
    text = await store_text(store, agent.id, f"{run.id}-{random_suffix()}", run.input) if run.input is not None else {}
    new = _NewRun(store, run, now, text, message, claim)
    started = await new.start(agent)
    if started is not run:
        await new.delete_texts()
    return started


async def skip(store: TenantStore, run: Run, now: float) -> Run:
    """Store ``run`` as skipped, unless there is a run with this id. Return the stored run.

    Raises:
        AgentNotFound: the agent was deleted.
        StorageUnavailable: the table does not answer; whether the run is stored is unknown.
    """
    skipped = replace(run, status=RunStatus.SKIPPED, input=None, finished_at=timestamp(now))
    writes: list[Write] = [
        Put(run_key(store, run), encode(skipped), ITEM_ABSENT),
        Check(keys.managed_agent(store.tenant, run.agent_id), ITEM_EXISTS & Absent("deleted_at")),
    ]
    try:
        await store.table.transact(writes, token=random_suffix())
    except TransactionFailed as failure:
        if item := failure.failures.get(_RUN):
            return decode(Run, item)
        raise agent_not_found() from None
    return skipped


@dataclass(frozen=True, slots=True)
class _NewRun:
    """A run to start, and what its transaction also puts. ``text`` are the attributes of its input."""

    store: TenantStore
    run: Run
    now: float
    text: dict[str, Value]
    message: NewMessage | None
    claim: Claim | None

    async def start(self, agent: ManagedAgent) -> Run:
        """Put the run and return it, or return the one that the same request has put before. Errors are those of ``start``."""
        for attempt in range(NUMBER_ATTEMPTS):
            try:
                await self.store.table.transact(await self._writes(agent), token=random_suffix())
            except TransactionFailed as failure:
                if item := failure.failures.get(_RUN):
                    return await self._repeated(item)
                if _AGENT not in failure.failures:
                    raise claim_lost() from None
                agent = await self._check(current_agent(failure.failures[_AGENT]))
                await wait_for_number(attempt)
            else:
                return self.run
        raise too_many_writers()

    async def delete_texts(self) -> None:
        """Remove the texts of a run that was put before, with others. The sweep removes those of a refused run, of which a
        request may still be in flight."""
        with suppress(StorageUnavailable):
            await delete_text(self.store, self.text)
            if self.message is not None:
                await delete_text(self.store, self.message.text)

    async def _writes(self, agent: ManagedAgent) -> Sequence[Write]:
        store, run = self.store, self.run
        values: dict[str, Value] = {"active_run": run.id}
        if run.trigger is RunTrigger.SCHEDULE:
            values["ticked_at"] = run.created_at
        is_free = accepts_work() & Absent("active_run")
        if not self._has_input:
            is_free &= Equals("pending", agent.pending)
        writes: list[Write] = [
            Put(run_key(store, run), encode(replace(run, input=None)) | self.text, ITEM_ABSENT),
            Update(keys.managed_agent(store.tenant, agent.id), set=values, when=is_free),
            Put(keys.pending_run(store.tenant, agent.id, run.id), {"created_at": run.created_at}),
        ]
        if self.message is not None:
            values |= counters_after_message(agent)
            is_numbered = is_free & Equals("next_seq", agent.next_seq)
            writes[_AGENT] = Update(keys.managed_agent(store.tenant, agent.id), set=values, when=is_numbered)
            writes.append(self.message.write(store, agent.id, agent.next_seq))
        if self.claim is not None:
            writes.append(await self.claim.completion(StoredResponse(RunView.of(run).to_dict(), {})))
        return writes

    async def _repeated(self, item: Item) -> Run:
        stored = await with_input(self.store, item)
        if stored.request_hash != self.run.request_hash:
            raise IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
        return stored

    async def _check(self, agent: ManagedAgent) -> ManagedAgent:
        """Return the agent if the run may start after all, because its run was lost, or because another message was numbered."""
        check_not_paused(agent)
        if agent.active_run is not None:
            if not await settle_lost(self.store, agent, self.now):
                raise run_active(agent)
            newest = await find_agent(self.store, agent.id)
            if newest is None or newest.deleted_at is not None:
                raise agent_not_found()
            agent = newest
        if not (self._has_input or agent.pending):
            raise nothing_to_run()
        return agent

    @property
    def _has_input(self) -> bool:
        """Return whether the run has something to do, whatever is pending. If not, another run may take its messages first."""
        return self.run.input is not None or self.message is not None


def nothing_to_run() -> NothingToRun:
    return NothingToRun("There is nothing to run: the mailbox has no pending message. Send a message, or an input.")
