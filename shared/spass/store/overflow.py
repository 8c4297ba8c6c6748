"""Long texts: one that is too large for its item is in the bucket, and the item has the key of the object.

The object is put before the item. Nothing reads an object whose item was never written; the owner's sweep removes it, or the
bucket's lifecycle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spass.core.tasks import map_concurrently
from spass.store.tenant_store import TenantStore
from spass.store.writes import Value

_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Overflow:
    """The text in the attribute ``name`` of an item. One of more than ``most_bytes`` is an object, whose key is in
    ``<name>_object``; the bucket's lifecycle removes a ``transient`` one within days."""

    name: str
    most_bytes: int
    transient: bool = False

    async def store(self, store: TenantStore, key: str, text: bytes) -> dict[str, Value]:
        """Return the attributes that hold ``text``. Put a long one into the bucket first, under ``key``."""
        if len(text) <= self.most_bytes:
            return {self.name: text.decode()}
        await store.objects.put(key, text, transient=self.transient)
        return {f"{self.name}_object": key}

    def object_of(self, item: Mapping[str, Value]) -> str | None:
        """Return the key of the object that holds the text, or None if the item has it."""
        key = item.get(f"{self.name}_object")
        return key if isinstance(key, str) else None

    async def load(self, store: TenantStore, items: Sequence[Mapping[str, Value]]) -> list[str]:
        """Return the text of each of ``items``, empty if it has none. Raise ``ObjectMissing`` if an object was removed."""

        async def read(item: Mapping[str, Value]) -> str:
            key = self.object_of(item)
            return str(item.get(self.name, "")) if key is None else (await store.objects.get(key)).decode()

        return await map_concurrently(read, items, limit=_READS_AT_ONCE)
