"""The mailbox of a managed agent: messages in both directions, numbered without gaps by the agent's counter.

Every new message takes its number from the counter as a condition, so no two messages have one number.

Short texts of messages, and of runs' inputs, are in their items, long ones in the bucket. An agent's objects are in one folder
and are deleted with the agent. Nothing reads an object whose item was never written: the sweep removes it. The name of an object
says where its item would be.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.errors import StorageUnavailable
from spass.core.ids import ManagedAgentId, MessageId, RunId, new_id, random_suffix
from spass.core.json import encode_utf8
from spass.core.paging import decode_cursor, fill_page
from spass.core.tasks import back_off
from spass.core.time import Timestamp, epoch_s, timestamp
from spass.managed.records import (
    Direction,
    MailboxMessage,
    ManagedAgent,
    MessageStatus,
    agent_not_found,
    check_not_paused,
    current_agent,
)
from spass.managed.responses import MessagePage, MessageView
from spass.store import keys
from spass.store.bucket import ObjectMissing, ObjectSummary
from spass.store.codec import decode, encode
from spass.store.idempotency import Claim, StoredResponse, claim_lost
from spass.store.overflow import Overflow
from spass.store.restored import check_restored
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Condition, Equals, Item, Put, Update, Value, Write

INLINE_BYTES: Final = 8 * 1024
"""Bytes of the longest text in an item. A run changes the items of up to 50 messages in one transaction."""

FOLDER: Final = "managed/"
"""The folder of the texts of all agents."""

MAX_MESSAGES: Final = 50
MAX_BYTES: Final = 256 * 1024
"""The most messages that one run reads, and the most bytes of their contents. A single message may have as many bytes."""
NUMBER_ATTEMPTS: Final = 12
"""Times that a writer numbers a message. After each failed attempt another message has the number."""
_NUMBER_DELAY: Final = 0.02  # seconds; doubled per attempt, full jitter
_ITEMS_PER_READ: Final = 64
_POSITION: Final = re.compile("[0-9]{1,10}")
_AGENT: Final = 0  # position in the transaction that puts a message

_TEXT: Final = Overflow("text", INLINE_BYTES)
_CANDIDATES_PER_READ: Final = 4
_SECONDS_TO_NUMBER: Final = 3600
"""Seconds that no text waits for its item to be written."""


def agent_folder(agent: ManagedAgentId) -> str:
    """Return the folder of all texts of one agent."""
    return f"{FOLDER}{agent}/"


async def store_text(store: TenantStore, agent: ManagedAgentId, name: str, text: str) -> dict[str, Value]:
    """Return the attributes of an item that has ``text``. Put a long one into the bucket first. ``name`` is unique to it."""
    body = encode_utf8(text)
    return await _TEXT.store(store, f"{agent_folder(agent)}{name}", body) | {"text_bytes": len(body)}


async def delete_text(store: TenantStore, attributes: Mapping[str, Value]) -> None:
    """Remove the text of an item that was not written."""
    if key := text_object(attributes):
        await store.objects.delete([key])


async def load_texts(store: TenantStore, items: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the text of each item, empty if it has none.

    Raises:
        ObjectMissing: the agent is being deleted.
    """
    return await _TEXT.load(store, items)


async def has_item(store: TenantStore, agent: ManagedAgentId, text: ObjectSummary) -> bool:
    """Return whether the item of a text was written. Read only the items that may be the one."""
    name = text.key.removeprefix(agent_folder(agent))
    if name.startswith("run_"):
        run = await store.table.get(keys.managed_run(store.tenant, agent, RunId(name.partition("-")[0])))
        return run is not None and text_object(run) == text.key
    partition = keys.managed_partition(store.tenant, agent)
    after = keys.managed_message(store.tenant, agent, int(name.partition("-")[0]) - 1).sk
    async for items in store.table.pages(partition, prefix=keys.MESSAGE_PREFIX, after=after, size=_CANDIDATES_PER_READ):
        if any(text_object(item) == text.key for item in items):
            return True
        if epoch_s(Timestamp(str(items[-1]["created_at"]))) > text.modified + _SECONDS_TO_NUMBER:
            return False
    return False


def text_object(item: Mapping[str, Value]) -> str | None:
    """Return the key of the text in the bucket, or None if the item has it or has none."""
    return _TEXT.object_of(item)


def text_bytes(item: Mapping[str, Value]) -> int:
    """Return the size of the text in UTF-8."""
    size = item.get("text_bytes", 0)
    return size if isinstance(size, int) else 0


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


async def new_message(
    store: TenantStore, agent: ManagedAgent, direction: Direction, content: str, now: float, run: RunId | None = None
) -> NewMessage:
    """Return a message that is written ``now`` (seconds since the epoch). Its content is stored if it is long. Its number will be
    the next one of ``agent``, or a later one."""
    message = MessageId(new_id("msg"))
    text = await store_text(store, agent.id, f"{agent.next_seq}-{message}", content)
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
            writes.append(await claim.completion(StoredResponse(MessageView.of(numbered).to_dict(), {})))
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
    """
    if not agent.pending:
        return ()
    chosen, size = list[Item](), 0
    partition = keys.managed_partition(store.tenant, agent.id)
    after = keys.managed_message(store.tenant, agent.id, agent.delivered_seq).sk
    async for items in store.table.pages(partition, prefix=keys.MESSAGE_PREFIX, after=after, size=_ITEMS_PER_READ):
        for item in items:
            if item["status"] != MessageStatus.PENDING:
                continue
            size += text_bytes(item)
            if chosen and size > max_bytes:
                return await _decode_all(store, agent.id, chosen)
            chosen.append(item)
            if len(chosen) == limit:
                return await _decode_all(store, agent.id, chosen)
    return await _decode_all(store, agent.id, chosen)


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
        for message in await _decode_all(store, agent, items):
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


async def _decode_all(store: TenantStore, agent: ManagedAgentId, items: Sequence[Item]) -> Sequence[MailboxMessage]:
    try:
        texts = await load_texts(store, items)
    except ObjectMissing:
        await check_restored(store, keys.managed_agent(store.tenant, agent), "this agent")
        raise agent_not_found() from None
    return [decode(MailboxMessage, item, content=text) for item, text in zip(items, texts, strict=True)]
