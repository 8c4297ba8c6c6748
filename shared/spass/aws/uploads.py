"""Files on their way in: what a tenant's clients put into the bucket themselves, under ``uploads/<tenant>/``."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from spass.aws.objects import Folder, byte_range, missing
from spass.aws.translate import storage_errors
from spass.core.ids import TenantId
from spass.core.time import now_s

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

UPLOADS_PREFIX: Final = "uploads/"
BLOCK_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class PresignedPost:
    """A form that puts one object: POST ``fields``, then the file as the field ``file``, as multipart/form-data to ``url``,
    before ``expires_at`` (second since the epoch)."""

    url: str
    fields: Mapping[str, str]
    expires_at: int


@dataclass(frozen=True, slots=True)
class UploadedObject:
    """An object as it stands; ``version`` is None in a bucket without versions."""

    version: str | None
    size: int


class TenantUploads(Folder):
    """Files that clients of one tenant have put. Keys are relative to ``uploads/<tenant>/``."""

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, tenant: TenantId) -> None:
        super().__init__(client, bucket, f"{UPLOADS_PREFIX}{tenant}/")

    def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """The form that puts ``key``, of ``content_type`` and ``size`` bytes at most, for ``seconds``. Signing calls nobody; the
        form is worth what the signer's own right to put is.
        (https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html)
        """
        with storage_errors():
            form = self._client().generate_presigned_post(
                self._bucket,
                self._prefix + key,
                Fields={"Content-Type": content_type},
                Conditions=[["content-length-range", 0, size], {"Content-Type": content_type}],
                ExpiresIn=seconds,
            )
        return PresignedPost(form["url"], form["fields"], now_s() + seconds)

    async def head(self, key: str, version: str | None = None) -> UploadedObject:
        """What is there: this version, or the newest.

        Raises:
            ObjectMissing: there is no such object.
            StorageUnavailable: throttled or unreachable through all retries.
        """
        try:
            response: Mapping[str, Any] = await self._call("HeadObject", self._client().head_object, self._named(key, version))
        except ClientError as error:
            raise missing(error) from None
        return UploadedObject(response.get("VersionId"), response["ContentLength"])

    async def blocks(self, key: str, version: str | None, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from ``start`` up to but not including ``end`` in blocks of 8 MiB; while one is worked on the next is read.

        Raises:
            ObjectMissing, StorageUnavailable: as ``head``.
        """

        def read(at: int) -> "asyncio.Task[bytes]":
            span = {"Range": byte_range(at, min(at + BLOCK_BYTES, end))}
            return asyncio.create_task(self._read(self._named(key, version) | span))

        ahead = read(start) if start < end else None
        try:
            while ahead is not None:
                block = await ahead
                start += len(block)
                ahead = read(start) if block and start < end else None
                yield block
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait({ahead})

    async def delete(self, key: str, version: str | None = None) -> None:
        """Remove an object, or one version of it; one that is not there does not matter.

        Raises:
            StorageUnavailable: it may be left.
        """
        await self._call("DeleteObject", self._client().delete_object, self._named(key, version))

    def _named(self, key: str, version: str | None) -> dict[str, object]:
        named: dict[str, object] = {"Key": self._prefix + key}
        return named if version is None else named | {"VersionId": version}
