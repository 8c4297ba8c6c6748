"""Files on their way in: what a tenant's clients put into the bucket themselves, under ``uploads/<tenant>/``."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from spass.aws.error_translation import storage_errors
from spass.aws.objects import Folder, byte_range, missing
from spass.core.ids import TenantId
from spass.core.time import epoch_s, now_s

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

UPLOADS_PREFIX: Final = "uploads/"
BLOCK_BYTES: Final = 8 * 2**20

CredentialsOf = Callable[[], Credentials | None]

# Lambda does not say when a function's credentials expire. An invocation may take 15 minutes, so they are good for that long.
_INVOCATION_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class PresignedPost:
    """A form that puts one object. POST ``fields``, then the file as the field ``file``, as multipart/form-data to ``url``. S3
    refuses a request that begins at ``expires_at`` (seconds since the epoch) or later."""

    url: str
    fields: Mapping[str, str]
    expires_at: int


@dataclass(frozen=True, slots=True)
class UploadedObject:
    """An object as it stands; ``version`` is None in a bucket without versions."""

    version: str | None
    size: int


class TenantUploads(Folder):
    """Files that clients of one tenant have put. Keys are relative to ``uploads/<tenant>/``.

    ``credentials`` returns those that ``client`` signs with.
    """

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, tenant: TenantId, credentials: CredentialsOf) -> None:
        super().__init__(client, bucket, f"{UPLOADS_PREFIX}{tenant}/")
        self._credentials = credentials

    def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """Return the form that puts ``key``, of ``content_type`` and at most ``size`` bytes. It is good for ``seconds``, or until
        the credentials that sign it expire, if that is earlier. S3 refuses the form if its signer may not put the object.
        (https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html)

        Raises:
            StorageUnavailable: expired credentials could not be renewed.
        """
        with storage_errors():
            seconds = min(seconds, _seconds_left(self._credentials()))
            form = self._client().generate_presigned_post(
                self._bucket,
                self._prefix + key,
                Fields={"Content-Type": content_type},
                Conditions=[["content-length-range", 0, size], {"Content-Type": content_type}],
                ExpiresIn=seconds,
            )
        policy = json.loads(base64.b64decode(form["fields"]["policy"]))
        return PresignedPost(form["url"], form["fields"], epoch_s(policy["expiration"]))

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

    async def folders(self) -> list[str]:
        """Return the names of the tenant's folders: the first part of each key.

        Raises:
            StorageUnavailable: throttled or unreachable through all retries.
        """
        found: list[str] = []
        more: dict[str, object] = {}
        while True:
            asked = {"Prefix": self._prefix, "Delimiter": "/", **more}
            page: Mapping[str, Any] = await self._call("ListObjectsV2", self._client().list_objects_v2, asked)
            found += [entry["Prefix"].removeprefix(self._prefix).rstrip("/") for entry in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

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


def _seconds_left(credentials: Credentials | None) -> int:
    """Return for how long these credentials are good, at least."""
    if credentials is None or credentials.get_frozen_credentials().token is None:
        return sys.maxsize  # those of a user do not expire
    # boto3 renews credentials that expire within 15 minutes before it gives them out. It shows their end nowhere else.
    expiry: datetime | None = getattr(credentials, "_expiry_time", None)
    return _INVOCATION_SECONDS if expiry is None else int(expiry.timestamp()) - now_s()
