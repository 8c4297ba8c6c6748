"""The notes that a tenant keeps: lines of the setting ``memory``, to which tools add."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from spass.aws.attributes import Item, Value
from spass.aws.beside import Beside
from spass.aws.clients import TenantStore
from spass.aws.commit_marker import commit
from spass.aws.keys import tenant_config
from spass.aws.table import ABSENT, Condition, Put, Update, Write
from spass.core.errors import InvalidRequest, StorageUnavailable
from spass.core.time import Deadline
from spass.tenancy.config import MAX_MEMORY_BYTES
from spass.tenancy.stored_settings import version_of

_LONGEST_PAUSE: Final = 0.1  # seconds between two tries, full jitter


@dataclass(frozen=True, slots=True)
class NoteResult:
    """What a note comes to. Bytes are of UTF-8."""

    memory_size_bytes: int


def append_line(memory: str | None, note: str) -> str:
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
    store: TenantStore, note: str, memory_of: Callable[[Item | None], str | None], beside: Beside[NoteResult], deadline: Deadline
) -> tuple[NoteResult, Item]:
    """Adds ``note`` to the memory that is in force by the tenant's item (``memory_of``), on condition that the item is still what
    was read. Answers the item after it, too.

    Raises:
        as ``Cascade.remember``.
    """
    while True:
        before = await _item(store)
        memory = append_line(memory_of(before), note)
        noted = NoteResult(len(memory.encode()))
        after: Item = {**(before or {}), "memory": memory, "version": version_of(before or {}) + 1}
        failures = await commit(store, [_swap(store, before, after), *await beside.writes(noted)])
        if not failures:
            return noted, after
        if failures.keys() - {0}:
            raise beside.refused()
        if not deadline.remaining():
            raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)
        await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 (jitter)


def _swap(store: TenantStore, before: Item | None, after: Mapping[str, Value]) -> Write:
    where = tenant_config(store.tenant)
    changed = {key: after[key] for key in ("memory", "version")}
    if before is None:
        return Put(where, changed, ABSENT)
    unchanged = Condition("#version = :before", {}, {":before": version_of(before)})
    names = {f"#{key}": key for key in changed}
    values = {f":{key}": value for key, value in changed.items()}
    return Update(where, f"SET {', '.join(f'#{key} = :{key}' for key in changed)}", names, values, unchanged)


async def _item(store: TenantStore) -> Item | None:
    return await store.table.get(tenant_config(store.tenant))
