"""The bucket as one tenant sees it: whole and ranged reads of objects."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


class ObjectMissing(Exception):
    """The bucket does not have an object under this key, or not the range of it that was to be read."""


class ObjectSummary(NamedTuple):
    """An object in a listing. ``modified`` is the time of its put, in seconds since the epoch."""

    key: str
    modified: int


class TenantObjects(Protocol):
    """The objects of one tenant.

    Raises:
        StorageUnavailable: the bucket throttled all retries or was unreachable; whether a write took effect is unknown.
    """

    async def put(self, key: str, body: bytes, *, transient: bool = False) -> None:
        """Store an object. The bucket removes a ``transient`` one within days."""
        ...

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the object's bytes, or those from ``start`` up to but not including ``end``.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectSummary]:
        """Yield the objects whose keys begin with ``prefix``, sorted by key."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Ignore missing ones. After an error, some objects may still exist."""
        ...

    async def list_keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted."""
        return [summary.key async for summary in self.list_objects(prefix)]

    async def list_folders(self, prefix: str) -> AsyncIterator[tuple[str, list[ObjectSummary]]]:
        """Yield each folder directly below ``prefix``, which ends with a slash, with its objects."""
        folder, group = "", list[ObjectSummary]()
        async for summary in self.list_objects(prefix):
            name = summary.key.removeprefix(prefix).partition("/")[0]
            if group and name != folder:
                yield folder, group
                group = []
            folder = name
            group.append(summary)
        if group:
            yield folder, group
