"""The notes of a tenant: lines of the setting ``memory``, which tools append."""

from collections.abc import Callable
from dataclasses import dataclass

from spass.core.errors import InvalidRequest
from spass.core.time import Deadline
from spass.store.keys import tenant_config
from spass.store.swap import Participant, Swap, swap
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Equals, Item, Update
from spass.tenancy.config import MAX_MEMORY_BYTES
from spass.tenancy.stored_settings import read_version


@dataclass(frozen=True, slots=True)
class NoteResult:
    """The size of the memory after a note, in bytes of UTF-8."""

    memory_size_bytes: int


def append_line(memory: str | None, note: str) -> str:
    """Return ``memory`` with ``note`` as its last line.

    Raises:
        InvalidRequest: the memory would exceed ``MAX_MEMORY_BYTES``.
    """
    lines = f"{memory.rstrip()}\n{note}" if memory and memory.strip() else note
    if (size := len(lines.encode())) > MAX_MEMORY_BYTES:
        raise InvalidRequest(
            f"The memory may have {MAX_MEMORY_BYTES} bytes; with this note it would have {size}. Write a shorter note, or ask an "
            "administrator to shorten the memory (PUT /v1/tenant/config with a new memory).",
            param="note",
        )
    return lines


async def append(
    store: TenantStore,
    note: str,
    get_memory: Callable[[Item | None], str | None],
    participant: Participant[NoteResult],
    deadline: Deadline,
) -> tuple[NoteResult, Item]:
    """Append ``note`` to the memory in force, which ``get_memory`` reads from the tenant's item. Return the result and the item.

    The write is conditional on the item that was read, so concurrent notes are not lost. Raise what ``Cascade.append_memory``
    raises.
    """
    key = tenant_config(store.tenant)
    after: Item = {}

    async def attempt() -> Swap[NoteResult]:
        nonlocal after
        before = await store.table.get(key)
        memory = append_line(get_memory(before), note)
        version = read_version(before or {})
        changed: Item = {"memory": memory, "version": version + 1}
        after = {**(before or {}), **changed}
        unchanged = ITEM_ABSENT if before is None else Equals("version", version)
        return Swap(NoteResult(len(memory.encode())), Update(key, set=changed, when=unchanged))

    return await swap(store, attempt, deadline, participant), after
