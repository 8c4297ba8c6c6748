"""The bucket, through boto3: a tenant's objects under ``T/<tenant>/``, and its clients' uploads under ``uploads/<tenant>/``."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

from spass.aws.error_translation import call_service, storage_errors
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.core.time import epoch_s, now_s
from spass.store.bucket import (
    UPLOADS_PREFIX,
    ObjectMissing,
    ObjectSummary,
    PresignedPost,
    TenantObjects,
    TenantUploads,
    UploadedObject,
)
from spass.store.invocation import retry_once

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

T = TypeVar("T")

_SKIP_BLOCK_BYTES: Final = 2**20
_LIST_PAGE: Final = 1000  # the maximum of ListObjectsV2
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "404", "InvalidRange"})
_FORBIDDEN: Final = frozenset({"AccessDenied", "403"})
_DELETE_BATCH: Final = 1000  # the maximum of DeleteObjects

BLOCK_BYTES: Final = 8 * 2**20

_Method: TypeAlias = "Callable[[S3Client], Callable[..., T]]"

# Lambda does not say when a function's credentials expire. An invocation may take 15 minutes, so they stay valid for that long.
_INVOCATION_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class S3Access:
    """boto3's client with the credentials that may read and write a tenant's objects.

    ``client`` returns it, and ``valid_seconds`` for how long what it signs stays valid. With ``is_of_tenant``, the credentials
    may list only the tenant's own prefixes, and S3 then answers 403 for an object that does not exist: a list must say which of
    the two it is.
    """

    client: "Callable[[], Awaitable[S3Client]]"
    valid_seconds: Callable[[], Awaitable[int]]
    is_of_tenant: bool = False


class Folder:
    """The objects of the bucket whose keys begin with ``prefix``. Methods take and return keys without it."""

    def __init__(self, access: S3Access, bucket: str, prefix: str) -> None:
        self._access = access
        self._bucket = bucket
        self._prefix = prefix
        self._may_be_missing = _FORBIDDEN if access.is_of_tenant else frozenset[str]()

    async def _read(self, parameters: Mapping[str, object]) -> bytes:
        def method(client: "S3Client") -> Callable[..., bytes]:
            def read(**call: object) -> bytes:
                try:
                    return _read_range(client.get_object(**call), call.get("Range"))  # type: ignore[arg-type]
                except (IncompleteReadError, ResponseStreamingError, ReadTimeoutError):
                    # boto3 retries only until the body begins. Retry once when the body breaks off.
                    return _read_range(client.get_object(**call), call.get("Range"))  # type: ignore[arg-type]

            return read

        return await self._find("GetObject", method, parameters)

    async def _find(self, operation: str, method: "_Method[T]", parameters: Mapping[str, object]) -> T:
        """Read an object. Raise ``ObjectMissing`` if it or the range does not exist.

        After a 403, list the key to find out whether the object exists. Otherwise a wrong policy would make objects that exist
        look like missing ones.
        """
        try:
            return await self._call(operation, method, parameters, self._may_be_missing)
        except ClientError as error:
            if error.response["Error"]["Code"] not in self._may_be_missing:
                raise missing(error) from None
        if not await self._exists(parameters):
            raise ObjectMissing
        try:  # again, because it may have been put between the two calls
            return await self._call(operation, method, parameters)
        except ClientError as error:
            raise missing(error) from None

    async def _exists(self, parameters: Mapping[str, object]) -> bool:
        """Return True if a list has the object, and the version of ``parameters``, if they have one, is the current one."""
        key, version = parameters["Key"], parameters.get("VersionId")
        wanted = {"Prefix": key, "MaxKeys": 1}
        page: Mapping[str, Any] = await self._call("ListObjectsV2", lambda s3: s3.list_objects_v2, wanted)
        if [entry["Key"] for entry in page.get("Contents", ())] != [key]:
            return False
        if version is None:
            return True
        try:
            current: Mapping[str, Any] = await self._call("HeadObject", lambda s3: s3.head_object, {"Key": key})
        except ClientError:
            return False
        return current.get("VersionId") == version

    async def _call(
        self, operation: str, method: "_Method[T]", parameters: Mapping[str, object], expected: Collection[str] = ()
    ) -> T:
        call = method(await self._access.client())
        return await call_service("s3", operation, call, {"Bucket": self._bucket, **parameters}, expected)


def _read_range(response: "GetObjectOutputTypeDef", range_header: object) -> bytes:
    """Return the bytes of ``range_header``, or all bytes if it is None. A server may ignore the header and send the whole object
    (RFC 9110, 14.2), as the emulator does for an object's versions.
    """
    body = response["Body"]
    if not isinstance(range_header, str) or "ContentRange" in response:
        return body.read()
    first, _, last = range_header.removeprefix("bytes=").partition("-")
    to_skip = int(first)
    while to_skip and (block := body.read(min(to_skip, _SKIP_BLOCK_BYTES))):
        to_skip -= len(block)
    try:
        return body.read(int(last) + 1 - int(first)) if last else body.read()
    finally:
        body.close()


def missing(error: ClientError) -> Exception:
    """Return ``ObjectMissing`` if ``error`` says that the object or the range does not exist, otherwise ``error``."""
    return ObjectMissing() if error.response["Error"]["Code"] in _MISSING else error


def _byte_range(start: int, end: int | None) -> str:
    """Return the Range header for the bytes from ``start`` up to but not including ``end``."""
    return f"bytes={start}-{'' if end is None else end - 1}"


class S3Objects(Folder, TenantObjects):
    """Objects of one tenant. Keys are relative to ``T/<tenant>/``."""

    def __init__(self, access: S3Access, bucket: str, tenant: TenantId) -> None:
        super().__init__(access, bucket, f"T/{tenant}/")

    async def put(self, key: str, body: bytes, *, transient: bool = False) -> None:
        parameters: dict[str, object] = {"Key": self._prefix + key, "Body": body}
        if transient:
            parameters["Tagging"] = "lifetime=days"
        await retry_once(lambda: self._call("PutObject", lambda s3: s3.put_object, parameters))

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        if start is not None and end is not None and end <= start:
            return b""
        parameters: dict[str, object] = {"Key": self._prefix + key}
        if start is not None or end is not None:
            parameters["Range"] = _byte_range(start or 0, end)
        return await self._read(parameters)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectSummary]:
        parameters: dict[str, object] = {"Prefix": self._prefix + prefix, "MaxKeys": _LIST_PAGE}
        while True:
            response: Mapping[str, Any] = await self._call("ListObjectsV2", lambda s3: s3.list_objects_v2, parameters)
            for entry in response.get("Contents", ()):
                yield ObjectSummary(entry["Key"].removeprefix(self._prefix), int(entry["LastModified"].timestamp()))
            if not response["IsTruncated"]:
                return
            parameters["ContinuationToken"] = response["NextContinuationToken"]

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[start : start + _DELETE_BATCH]]
            parameters: dict[str, object] = {"Delete": {"Objects": batch, "Quiet": True}}
            response = await self._call("DeleteObjects", lambda s3: s3.delete_objects, parameters)
            if response.get("Errors"):
                raise StorageUnavailable("Some objects could not be removed; try again.", retry_after=1)


class S3Uploads(Folder, TenantUploads):
    """The uploaded files of one tenant. Keys are relative to ``uploads/<tenant>/``."""

    def __init__(self, access: S3Access, bucket: str, tenant: TenantId) -> None:
        super().__init__(access, bucket, f"{UPLOADS_PREFIX}{tenant}/")

    async def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """Sign a form that is valid for ``seconds``, or until the credentials that sign it expire, if that is earlier. S3 refuses
        the form if the signer may not put the object.
        (https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html)
        """
        with storage_errors():
            # First, so that the client's credentials are valid for at least as long.
            seconds = min(seconds, await self._access.valid_seconds())
            client = await self._access.client()
            form = client.generate_presigned_post(
                self._bucket,
                self._prefix + key,
                Fields={"Content-Type": content_type},
                Conditions=[["content-length-range", 0, size], {"Content-Type": content_type}],
                ExpiresIn=seconds,
            )
        policy = json.loads(base64.b64decode(form["fields"]["policy"]))
        return PresignedPost(form["url"], form["fields"], epoch_s(policy["expiration"]))

    async def head(self, key: str, version: str | None = None) -> UploadedObject:
        parameters = self._parameters_of(key, version)
        response: Mapping[str, Any] = await self._find("HeadObject", lambda s3: s3.head_object, parameters)
        return UploadedObject(response.get("VersionId"), response["ContentLength"])

    async def folders(self) -> list[str]:
        names: list[str] = []
        continuation: dict[str, object] = {}
        while True:
            parameters = {"Prefix": self._prefix, "Delimiter": "/", **continuation}
            page: Mapping[str, Any] = await self._call("ListObjectsV2", lambda s3: s3.list_objects_v2, parameters)
            names += [entry["Prefix"].removeprefix(self._prefix).rstrip("/") for entry in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return names
            continuation = {"ContinuationToken": page["NextContinuationToken"]}

    async def blocks(self, key: str, version: str | None, start: int, end: int) -> AsyncGenerator[bytes, None]:
        def read(at: int) -> "asyncio.Task[bytes]":
            byte_span = {"Range": _byte_range(at, min(at + BLOCK_BYTES, end))}
            return asyncio.create_task(self._read(self._parameters_of(key, version) | byte_span))

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
        await self._call("DeleteObject", lambda s3: s3.delete_object, self._parameters_of(key, version))

    def _parameters_of(self, key: str, version: str | None) -> dict[str, object]:
        parameters: dict[str, object] = {"Key": self._prefix + key}
        return parameters if version is None else parameters | {"VersionId": version}


def valid_seconds(credentials: "Credentials | None") -> int:
    """Return a lower bound of the seconds for which these credentials stay valid."""
    if credentials is None or credentials.get_frozen_credentials().token is None:
        return sys.maxsize  # a user's credentials do not expire
    # boto3 renews credentials that expire within 15 minutes before it returns them. It has no public attribute for
    # the time of expiry.
    expiry: datetime | None = getattr(credentials, "_expiry_time", None)
    return _INVOCATION_SECONDS if expiry is None else int(expiry.timestamp()) - now_s()
