"""Remove the notes of forgotten generations of an operator. No reader sees them, because each reads its own generation."""

from typing import Final

from spass.memory.operator import Operator
from spass.memory.state import read_state
from spass.store import keys
from spass.store.tenant_store import TenantStore

_NOTES_PER_BATCH: Final = 50


async def remove_garbage(store: TenantStore, operator: Operator) -> bool:
    """Remove the notes that are not of the operator's present generation. Return whether there were any.

    An operator begins before its first note is written. So a note that was read before the state, and is of another generation
    than the state, is of a forgotten one, even if the operator begins again at this moment.

    Raises:
        StorageUnavailable: some notes may stay; repeat the call.
    """
    partition = keys.operator_partition(store.tenant, operator.user, operator.id)
    found = False
    async for items in store.table.pages(partition, prefix=keys.NOTE_PREFIX, size=_NOTES_PER_BATCH):
        state = await read_state(store, operator)
        present = state.generation if state is not None else None
        garbage = [item for item in items if item["generation"] != present]
        await store.table.delete(garbage)
        found |= bool(garbage)
    return found
