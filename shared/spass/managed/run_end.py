"""End the runs of a managed agent.

Each end is one transaction, on condition that the run is still the agent's active one. So a late or repeated end has no effect.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from spass.core.cost import decimal_text
from spass.core.errors import StorageUnavailable, TurnLost
from spass.core.ids import random_suffix
from spass.core.messages import Json
from spass.core.run_result import RunResult
from spass.core.time import Clock, timestamp
from spass.managed.lookup import IS_OPEN, find_agent, run_key
from spass.managed.mailbox import NewMessage, delivery, new_message
from spass.managed.records import Direction, MailboxMessage, ManagedAgent, Run, RunStatus, encode_error
from spass.managed.texts import delete_text
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Update, Value, Write


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
            StorageUnavailable: the table or the bucket does not answer.
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
