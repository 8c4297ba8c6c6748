"""Read the mark of a subject with lost parts, which ``python -m operate restore`` sets as an attribute of its head item.

Writers keep the mark, because they replace only attributes that they know. It is read only when something is missing.
"""

from collections.abc import Mapping
from typing import Final

from spass.core.errors import InternalError
from spass.store.keys import Key
from spass.store.tenant_store import TenantStore

LOST: Final = "lost"


async def is_marked(store: TenantStore, head: Key, *, generation: str = "") -> bool:
    """Return whether a restore has marked the item ``head``, in this ``generation`` if it has any."""
    item = await store.table.get(head)
    mark = item.get(LOST) if item is not None else None
    return isinstance(mark, Mapping) and mark.get("generation", "") == generation


async def check_restored(store: TenantStore, head: Key, what: str, *, generation: str = "") -> None:
    """Raise ``InternalError`` if ``what``, with the item ``head``, is marked."""
    if await is_marked(store, head, generation=generation):
        raise InternalError(f"A part of {what} is lost: the operator's restore could not bring it back.")
