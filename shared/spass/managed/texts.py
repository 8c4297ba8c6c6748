"""The texts of messages and of runs' inputs: short ones are in their items, long ones in the bucket.

An agent's objects are in one folder and are deleted with the agent. Nothing reads an object whose item was never written.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from spass.aws.attributes import Value
from spass.aws.clients import TenantStore
from spass.core.ids import ManagedAgentId
from spass.core.json import encode_utf8

INLINE_BYTES: Final = 8 * 1024
"""Bytes of the longest text in an item. A run changes the items of up to 50 messages in one transaction."""

FOLDER: Final = "managed/"
"""The folder of the texts of all agents."""

_TEXT: Final = "text"
_OBJECT: Final = "text_object"
_READS_AT_ONCE: Final = 16


def agent_folder(agent: ManagedAgentId) -> str:
    """Return the folder of all texts of one agent."""
    return f"{FOLDER}{agent}/"


async def store_text(store: TenantStore, agent: ManagedAgentId, name: str, text: str) -> dict[str, Value]:
    """Return the attributes of an item that has ``text``. Put a long one into the bucket first; ``name`` is unique to the item.

    Raises:
        StorageUnavailable: the bucket does not answer.
    """
    body = encode_utf8(text)
    if len(body) <= INLINE_BYTES:
        return {_TEXT: body.decode(), "text_bytes": len(body)}
    key = f"{agent_folder(agent)}{name}"
    await store.objects.put(key, body)
    return {_OBJECT: key, "text_bytes": len(body)}


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
    limit = asyncio.Semaphore(_READS_AT_ONCE)

    async def load(item: Mapping[str, Value]) -> str:
        key = text_object(item)
        if key is None:
            return str(item.get(_TEXT, ""))
        async with limit:
            return (await store.objects.get(key)).decode()

    return await asyncio.gather(*map(load, items))


def text_object(item: Mapping[str, Value]) -> str | None:
    """Return the key of the text in the bucket, or None if the item has it or has none."""
    key = item.get(_OBJECT)
    return key if isinstance(key, str) else None


def text_bytes(item: Mapping[str, Value]) -> int:
    """Return the size of the text in UTF-8."""
    size = item.get("text_bytes", 0)
    return size if isinstance(size, int) else 0
