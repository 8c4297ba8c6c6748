"""The texts of messages and of runs' inputs: short ones are in their items, long ones in the bucket.

An agent's objects are in one folder and are deleted with the agent. Nothing reads an object whose item was never written: the
sweep removes it. The name of an object says where its item would be.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from spass.core.ids import ManagedAgentId, MessageId, RunId, random_suffix
from spass.core.json import encode_utf8
from spass.core.time import Timestamp, epoch_s
from spass.store import keys
from spass.store.bucket import ObjectSummary
from spass.store.overflow import Overflow
from spass.store.tenant_store import TenantStore
from spass.store.writes import Value

INLINE_BYTES: Final = 8 * 1024
"""Bytes of the longest text in an item. A run changes the items of up to 50 messages in one transaction."""

FOLDER: Final = "managed/"
"""The folder of the texts of all agents."""

_TEXT: Final = Overflow("text", INLINE_BYTES)
_ITEMS_PER_READ: Final = 4
_SECONDS_TO_NUMBER: Final = 3600
"""Seconds that no text waits for its item to be written."""


def agent_folder(agent: ManagedAgentId) -> str:
    """Return the folder of all texts of one agent."""
    return f"{FOLDER}{agent}/"


def message_text_name(seq: int, message: MessageId) -> str:
    """Return the name of the content of a message, whose number is ``seq`` or a later one."""
    return f"{seq}-{message}"


def run_text_name(run: RunId) -> str:
    """Return a new name for the input of a run."""
    return f"{run}-{random_suffix()}"


async def store_text(store: TenantStore, agent: ManagedAgentId, name: str, text: str) -> dict[str, Value]:
    """Return the attributes of an item that has ``text``. Put a long one into the bucket first; ``name`` is unique to the item.

    Raises:
        StorageUnavailable: the bucket does not answer.
    """
    body = encode_utf8(text)
    return await _TEXT.store(store, f"{agent_folder(agent)}{name}", body) | {"text_bytes": len(body)}


async def delete_text(store: TenantStore, attributes: Mapping[str, Value]) -> None:
    """Remove the text of an item that was not written.

    Raises:
        StorageUnavailable: the bucket does not answer.
    """
    if key := text_object(attributes):
        await store.objects.delete([key])


async def load_texts(store: TenantStore, items: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the text of each item, empty if it has none.

    Raises:
        ObjectMissing: the agent is being deleted.
        StorageUnavailable: the bucket does not answer.
    """
    return await _TEXT.load(store, items)


async def has_item(store: TenantStore, agent: ManagedAgentId, text: ObjectSummary) -> bool:
    """Return whether the item of a text was written. Read only the items that may be the one.

    Raises:
        StorageUnavailable: the table does not answer.
    """
    name = text.key.removeprefix(agent_folder(agent))
    if name.startswith("run_"):
        run = await store.table.get(keys.managed_run(store.tenant, agent, RunId(name.partition("-")[0])))
        return run is not None and text_object(run) == text.key
    partition = keys.managed_partition(store.tenant, agent)
    after = keys.managed_message(store.tenant, agent, int(name.partition("-")[0]) - 1).sk
    while items := await store.table.query(partition, prefix=keys.MESSAGE_PREFIX, after=after, limit=_ITEMS_PER_READ):
        if any(text_object(item) == text.key for item in items):
            return True
        after = str(items[-1]["sk"])
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
