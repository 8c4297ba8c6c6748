"""Files that a tenant's clients upload to the bucket themselves."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

UPLOADS_PREFIX: Final = "uploads/"


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

    def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """Return the form that puts ``key``, of ``content_type`` and at most ``size`` bytes. Its validity is at most
        ``seconds``."""
        ...

    async def head(self, key: str, version: str | None = None) -> UploadedObject:
        """Return the state of an object: of this version, or of the newest.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    async def folders(self) -> list[str]:
        """Return the names of the tenant's folders: the first part of each key."""
        ...

    def blocks(self, key: str, version: str | None, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to but not including ``end`` in blocks. Read the next block ahead.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    async def delete(self, key: str, version: str | None = None) -> None:
        """Delete an object, or one version of it. Ignore a missing one."""
        ...
