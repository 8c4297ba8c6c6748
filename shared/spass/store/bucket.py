"""The bucket as one tenant sees it: its objects, and the files that its clients upload themselves."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from spass.core.time import Deadline

UPLOADS_PREFIX: Final = "uploads/"


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

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the object's bytes, or those from ``start`` up to but not including ``end``. Raise ``ObjectMissing`` if there is
        no such object."""

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectSummary]:
        """Yield the objects whose keys begin with ``prefix``, sorted by key."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Ignore missing ones. After an error, some objects may still exist."""

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

    async def remove_orphans(
        self,
        folder: str,
        is_due: Callable[[ObjectSummary], bool],
        choose: Callable[[str, Sequence[ObjectSummary]], Awaitable[Sequence[str]]],
        deadline: Deadline,
        guard: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
    ) -> int:
        """Delete the objects below ``folder`` that nothing refers to, because their writer died or lost a race. Return their
        number. Stop at the deadline; the next sweep continues.

        ``choose`` gets the name of a folder directly below and its objects that are due by ``is_due``, and returns the orphans.
        ``guard`` surrounds the work on one such folder. After an error, what was removed so far stays removed.
        """
        removed = 0
        async for name, objects in self.list_folders(folder):
            if not deadline.remaining():
                break
            async with guard(name):
                if due := [one for one in objects if is_due(one)]:
                    orphans = await choose(name, due)
                    await self.delete(orphans)
                    removed += len(orphans)
        return removed


@dataclass(frozen=True, slots=True)
class PresignedPost:
    """A form that puts one object. POST ``fields``, then the file as the field ``file``, as multipart/form-data to ``url``. The
    bucket refuses a request that begins at ``expires_at`` (seconds since the epoch) or later."""

    url: str
    fields: Mapping[str, str]
    expires_at: int


@dataclass(frozen=True, slots=True)
class UploadedObject:
    """The current state of an object, ``size`` in bytes. ``version`` is None in a bucket without versions."""

    version: str | None
    size: int


class TenantUploads(Protocol):
    """The uploaded files of one tenant.

    Raises:
        StorageUnavailable: the bucket throttled all retries or was unreachable; whether a write took effect is unknown.
    """

    async def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """Return the form that puts ``key``, of ``content_type`` and at most ``size`` bytes. Its validity is at most
        ``seconds``."""

    async def head(self, key: str, version: str | None = None) -> UploadedObject:
        """Return the state of an object: of this version, or of the newest. Raise ``ObjectMissing`` if there is no such
        object."""

    async def folders(self) -> list[str]:
        """Return the names of the tenant's folders: the first part of each key."""

    def blocks(self, key: str, version: str | None, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to but not including ``end`` in blocks. Read the next block ahead. Raise
        ``ObjectMissing`` if there is no such object."""

    async def delete(self, key: str, version: str | None = None) -> None:
        """Delete an object, or one version of it. Ignore a missing one."""
