"""The mailbox of a managed agent: messages in both directions, numbered without gaps by the agent's counter.

Every new message takes its number from the counter as a condition, so no two messages have one number.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from spass.core.errors import StorageUnavailable
from spass.core.ids import ManagedAgentId, MessageId, RunId, new_id, random_suffix
from spass.core.paging import decode_cursor, fill_page
from spass.core.tasks import back_off
from spass.core.time import timestamp
from spass.managed.lookup import agent_not_found, check_not_paused, current_agent
from spass.managed.records import Direction, MailboxMessage, ManagedAgent, MessageStatus
from spass.managed.responses import MessagePage, MessageView
from spass.managed.texts import load_texts, message_text_name, store_text, text_bytes
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.codec import decode, encode
from spass.store.idempotency import Claim, StoredAnswer, claim_lost
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Condition, Equals, Item, Put, Update, Value, Write

MAX_MESSAGES: Final = 50
MAX_BYTES: Final = 256 * 1024
"""The most messages that one run reads, and the most bytes of their contents. A single message may have as many bytes."""
NUMBER_ATTEMPTS: Final = 12
"""Times that a writer numbers a message. After each failed attempt another message has the number."""
_NUMBER_DELAY: Final = 0.02  # seconds; doubled per attempt, full jitter
_ITEMS_PER_READ: Final = 64
_POSITION: Final = re.compile("[0-9]{1,10}")
_AGENT, _MESSAGE = 0, 1  # positions in the transaction that puts a message


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that has no number yet. ``text`` are the attributes of its content, which is in the bucket already if it is
    long."""

    id: MessageId
    direction: Direction
    content: str
    run_id: RunId | None
    at: float
    text: dict[str, Value]

    def numbered(self, seq: int) -> MailboxMessage:
        """Return the message with its number. Only messages to the agent are pending."""
        is_pending = self.direction is Direction.USER_TO_AGENT
        status = MessageStatus.PENDING if is_pending else MessageStatus.DELIVERED
        return MailboxMessage(self.id, seq, self.direction, self.content, status, self.run_id, timestamp(self.at))

    def write(self, store: TenantStore, agent: ManagedAgentId, seq: int) -> Put:
        """Return the write of the message with its number, which must be free."""
        attributes = encode(self.numbered(seq), without=("content",))
        return Put(keys.managed_message(store.tenant, agent, seq), attributes | self.text, ITEM_ABSENT)


class Pending(NamedTuple):
    """Items that a query of the mailbox has found, and the sort key after which the next query begins, or None."""

    items: list[Item]
    after: str | None


async def new_message(
    store: TenantStore, agent: ManagedAgent, direction: Direction, content: str, now: float, run: RunId | None = None
) -> NewMessage:
    """Return a message that is written ``now`` (seconds since the epoch). Its content is stored if it is long. Its number will be
    the next one of ``agent``, or a later one.

    Raises:
        StorageUnavailable: the bucket does not answer.
    """
    message = MessageId(new_id("msg"))
    text = await store_text(store, agent.id, message_text_name(agent.next_seq, message), content)
    return NewMessage(message, direction, content, run, now, text)


async def put(store: TenantStore, agent: ManagedAgent, content: str, now: float, claim: Claim | None = None) -> MailboxMessage:
    """Put a message of the user into the mailbox of ``agent``. With a ``claim``, the same transaction stores the answer.

    A refused message leaves a long content to the sweep: a request of ours may still be in flight, and store the message later.

    Raises:
        AgentNotFound, AgentPaused: the agent was deleted or is paused; nothing is stored.
        LeaseLost: another attempt has the claim; nothing is stored.
        StorageUnavailable: the table or the bucket does not answer; whether the message is stored is unknown.
    """
    check_not_paused(agent)
    message = await new_message(store, agent, Direction.USER_TO_AGENT, content, now)
    for attempt in range(NUMBER_ATTEMPTS):
        check_not_paused(agent)
        numbered = message.numbered(agent.next_seq)
        writes: list[Write] = [
            Update(
                keys.managed_agent(store.tenant, agent.id),
                set=counters_after_message(agent),
                when=accepts_work() & Equals("next_seq", agent.next_seq),
            ),
            message.write(store, agent.id, agent.next_seq),
        ]
        if claim is not None:
            writes.append(await claim.completion(StoredAnswer(MessageView.of(numbered).to_dict(), {})))
        try:
            await store.table.transact(writes, token=random_suffix())
        except TransactionFailed as failure:
            if _AGENT not in failure.failures:
                raise claim_lost() from None
            agent = current_agent(failure.failures[_AGENT])
            await wait_for_number(attempt)
        else:
            return numbered
    raise too_many_writers()


async def pending(
    store: TenantStore, agent: ManagedAgent, limit: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
) -> Sequence[MailboxMessage]:
    """Return the oldest pending messages: at most ``limit`` with at most ``max_bytes`` of UTF-8, but at least one of them.

    ``agent`` is as it was read right before the run started, or later. If it had no pending message, the mailbox is not read: a
    message that came in since then waits for the next run.

    Raises:
        AgentNotFound: the agent is being deleted.
        StorageUnavailable: the table or the bucket does not answer.
    """
    if not agent.pending:
        return ()
    chosen, size = list[Item](), 0
    found = Pending([], keys.managed_message(store.tenant, agent.id, agent.delivered_seq).sk)
    while found.after is not None:
        found = await _read_items(store, agent.id, found.after, _ITEMS_PER_READ)
        for item in found.items:
            if item["status"] != MessageStatus.PENDING:
                continue
            size += text_bytes(item)
            if chosen and size > max_bytes:
                return await _decode_all(store, chosen)
            chosen.append(item)
            if len(chosen) == limit:
                return await _decode_all(store, chosen)
    return await _decode_all(store, chosen)


def delivery(store: TenantStore, agent: ManagedAgentId, message: MailboxMessage, run: RunId) -> Update:
    """Return the write that marks a pending message as read by ``run``."""
    return Update(
        keys.managed_message(store.tenant, agent, message.seq),
        set={"status": MessageStatus.DELIVERED.value, "run_id": run},
        when=Equals("id", message.id) & Equals("status", MessageStatus.PENDING.value),
    )


async def page(store: TenantStore, agent: ManagedAgentId, cursor: str | None, limit: int) -> MessagePage:
    """Return at most ``limit`` messages of the mailbox from ``cursor`` on, oldest first.

    Raises:
        AgentNotFound: the agent is being deleted.
        InvalidRequest: the cursor does not belong to this list.
        StorageUnavailable: the table or the bucket does not answer.
    """
    scope = f"mailbox|{store.tenant}|{agent}"
    seq = int(decode_cursor(scope, cursor, _POSITION)) if cursor is not None else 0
    size = min(_ITEMS_PER_READ, limit + 1)
    messages, next_cursor = await fill_page(scope, _views(store, agent, seq, size), limit)
    return MessagePage(messages=messages, next_cursor=next_cursor)


async def _views(
    store: TenantStore, agent: ManagedAgentId, after: int, size: int
) -> AsyncGenerator[tuple[str, MessageView], None]:
    partition, start = keys.managed_partition(store.tenant, agent), keys.managed_message(store.tenant, agent, after).sk
    async for items in store.table.pages(partition, prefix=keys.MESSAGE_PREFIX, after=start, size=size):
        for message in await _decode_all(store, items):
            yield str(message.seq), MessageView.of(message)


def accepts_work() -> Condition:
    """Return the condition on an agent's item that it takes messages and runs: it exists, and is neither deleted nor paused."""
    return Equals("paused", False) & Absent("deleted_at")


def counters_after_message(agent: ManagedAgent) -> dict[str, Value]:
    """Return the counters of ``agent`` after one more message of the user."""
    return {"next_seq": agent.next_seq + 1, "pending": agent.pending + 1}


async def wait_for_number(attempt: int) -> None:
    """Wait before the attempt after ``attempt``, which counts from 0."""
    await back_off(_NUMBER_DELAY * 2 ** min(attempt, 4))


def too_many_writers() -> StorageUnavailable:
    return StorageUnavailable("Too many messages to this agent at once; try again.", retry_after=1)


async def _read_items(store: TenantStore, agent: ManagedAgentId, after: str, limit: int) -> Pending:
    partition = keys.managed_partition(store.tenant, agent)
    items = await store.table.query(partition, prefix=keys.MESSAGE_PREFIX, after=after, limit=limit)
    return Pending(items, str(items[-1]["sk"]) if len(items) == limit else None)


async def _decode_all(store: TenantStore, items: Sequence[Item]) -> Sequence[MailboxMessage]:
    try:
        texts = await load_texts(store, items)
    except ObjectMissing:
        raise agent_not_found() from None
    return [_decode(item, text) for item, text in zip(items, texts, strict=True)]


def _decode(item: Item, content: str) -> MailboxMessage:
    return decode(MailboxMessage, item, content=content)
