"""The mark of what a restore could not bring back whole: an attribute of the item at its head (``python -m operate restore``).

Writers keep the mark, because they replace only attributes that they know. It is read only when something is missing.
"""

from collections.abc import Mapping
from typing import Final

from spass.core.errors import InternalError
from spass.store.keys import Key
from spass.store.tenant_store import TenantStore

LOST: Final = "lost"


async def check_restored(store: TenantStore, head: Key, what: str, *, generation: str = "") -> None:
    """Raise ``InternalError`` if a restore has marked the item ``head`` of ``what``, in this ``generation`` if it has any."""
    item = await store.table.get(head)
    mark = item.get(LOST) if item is not None else None
    if isinstance(mark, Mapping) and mark.get("generation", "") == generation:
        raise InternalError(f"A part of {what} is lost: the operator's restore could not bring it back.")
