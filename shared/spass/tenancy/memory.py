"""The notes that a tenant keeps: lines of the setting ``memory``, to which tools add."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.aws.attributes import Item, Value
from spass.aws.beside import Beside
from spass.aws.clients import TenantStore
from spass.aws.keys import tenant_config
from spass.aws.table import ABSENT, Condition, Put, TransactionFailed, Update, Write
from spass.core.errors import InvalidRequest, StorageUnavailable
from spass.core.ids import random_suffix
from spass.core.time import Deadline
from spass.tenancy.config import MAX_MEMORY_BYTES
from spass.tenancy.stored import names_of, version_of

_SENDS: Final = 3  # of one write, while nobody can say whether it took place
_LONGEST_PAUSE: Final = 0.1  # seconds between two tries, full jitter
_MAX_NAMES: Final = 32


@dataclass(frozen=True, slots=True)
class Noted:
    """What a note comes to. Bytes are of UTF-8."""

    memory_size_bytes: int


def with_note(memory: str | None, note: str) -> str:
    """``memory`` with one line more.

    Raises:
        InvalidRequest: there is no room for it.
    """
    lines = f"{memory.rstrip()}\n{note}" if memory and memory.strip() else note
    if (size := len(lines.encode())) > MAX_MEMORY_BYTES:
        message = f"The memory may have {MAX_MEMORY_BYTES} bytes; with this note it would have {size}. Write a shorter note, or "
        raise InvalidRequest(
            message + "have the memory shortened by an administrator (PUT /v1/tenant/config with a new memory).", param="note"
        )
    return lines


async def append(
    store: TenantStore, note: str, memory_of: Callable[[Item | None], str | None], beside: Beside[Noted], deadline: Deadline
) -> tuple[Noted, Item]:
    """Adds ``note`` to the memory that is in force by the tenant's item (``memory_of``), on condition that the item is still what
    was read. Answers the item after it, too.

    Raises:
        as ``Cascade.remember``.
    """
    while True:
        before = await _item(store)
        memory = with_note(memory_of(before), note)
        noted, name = Noted(len(memory.encode())), random_suffix()
        after = _after(before, memory, name)
        writes = [_swap(store, before, after), *await beside.writes(noted)]
        if await _took_place(store, name, writes, beside):
            return noted, after
        if not deadline.remaining():
            raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)
        await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 (jitter)


def _after(before: Item | None, memory: str, name: str) -> Item:
    item = before or {}
    return {**item, "memory": memory, "notes": [*names_of(item), name][-_MAX_NAMES:], "version": version_of(item) + 1}


def _swap(store: TenantStore, before: Item | None, after: Mapping[str, Value]) -> Write:
    where = tenant_config(store.tenant)
    changed = {key: after[key] for key in ("memory", "notes", "version")}
    if before is None:
        return Put(where, changed, ABSENT)
    unchanged = Condition("#version = :before", {}, {":before": version_of(before)})
    names = {f"#{key}": key for key in changed}
    values = {f":{key}": value for key, value in changed.items()}
    return Update(where, f"SET {', '.join(f'#{key} = :{key}' for key in changed)}", names, values, unchanged)


async def _took_place(store: TenantStore, name: str, writes: Sequence[Write], beside: Beside[Noted]) -> bool:
    """Send the write until it is known whether it took place; its name among the notes says so, whoever came after. The client
    sends again too, so a failed condition may be the first sending's effect."""
    for _ in range(_SENDS):
        try:
            await store.table.transact(writes, token=name)
        except TransactionFailed as failure:
            item = failure.failures[0] if 0 in failure.failures else await _item(store)
            if name in names_of(item or {}):
                return True
            if failure.failures.keys() - {0}:
                raise beside.refused() from None
            return False
        except StorageUnavailable:
            if name in names_of(await _item(store) or {}):
                return True
        else:
            return True
    raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1)


async def _item(store: TenantStore) -> Item | None:
    return await store.table.get(tenant_config(store.tenant))
