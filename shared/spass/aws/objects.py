"""The bucket as one tenant sees it: whole and ranged reads of objects under ``T/<tenant>/``."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

from spass.aws.error_translation import storage_errors
from spass.aws.invocation import AwsCall, invoke, retry_once
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

T = TypeVar("T")

_SKIP_BLOCK_BYTES: Final = 2**20
_LIST_PAGE: Final = 1000  # the maximum of ListObjectsV2
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "404", "InvalidRange"})
_DELETE_BATCH: Final = 1000  # the maximum of DeleteObjects


class ObjectMissing(Exception):
    """The bucket does not have an object under this key, or not the range of it that was to be read."""


class ObjectSummary(NamedTuple):
    """An object in a listing. ``modified`` is the time of its put, in seconds since the epoch."""

    key: str
    modified: int


class Folder:
    """The objects of the bucket whose keys begin with ``prefix``. Methods take and return keys without it."""

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    async def _read(self, parameters: Mapping[str, object]) -> bytes:
        client = self._client()

        def read(**call: object) -> bytes:
            try:
                return _read_range(client.get_object(**call), call.get("Range"))  # type: ignore[arg-type]
            except (IncompleteReadError, ResponseStreamingError, ReadTimeoutError):
                # boto3 retries only until the body begins. Retry once when the body breaks off.
                return _read_range(client.get_object(**call), call.get("Range"))  # type: ignore[arg-type]

        try:
            return await self._call("GetObject", read, parameters)
        except ClientError as error:
            raise missing(error) from None

    async def _call(self, operation: str, method: Callable[..., T], parameters: Mapping[str, object]) -> T:
        call = {"Bucket": self._bucket} | dict(parameters)

        def run() -> T:
            with storage_errors():
                return method(**call)

        return await invoke(AwsCall("s3", operation, call), run)


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


def byte_range(start: int, end: int | None) -> str:
    """Return the Range header for the bytes from ``start`` up to but not including ``end``."""
    return f"bytes={start}-{'' if end is None else end - 1}"


class TenantObjects(Folder):
    """Objects of one tenant. Keys are relative to ``T/<tenant>/``."""

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, tenant: TenantId) -> None:
        super().__init__(client, bucket, f"T/{tenant}/")

    async def put(self, key: str, body: bytes, *, transient: bool = False) -> None:
        """Store an object. The bucket's lifecycle removes a ``transient`` one within days.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable; it may have been stored.
        """
        parameters: dict[str, object] = {"Body": body}
        if transient:
            parameters["Tagging"] = "lifetime=days"
        parameters = {"Key": self._prefix + key} | parameters
        await retry_once(lambda: self._call("PutObject", self._client().put_object, parameters))

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the object's bytes, or those from ``start`` up to but not including ``end``.

        Raises:
            ObjectMissing: there is no such object.
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        if start is not None and end is not None and end <= start:
            return b""
        parameters: dict[str, object] = {"Key": self._prefix + key}
        if start is not None or end is not None:
            parameters["Range"] = byte_range(start or 0, end)
        return await self._read(parameters)

    async def get_all(self, keys: Sequence[str]) -> list[bytes]:
        """Read whole objects concurrently and return them in the order of ``keys``. Raises the same errors as ``get``."""
        return await asyncio.gather(*(self.get(key) for key in keys))

    async def list_keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        return [summary.key async for summary in self.list_objects(prefix)]

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectSummary]:
        """Yield the objects whose keys begin with ``prefix``, sorted by key. Each request lists a thousand.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        parameters: dict[str, object] = {"Prefix": self._prefix + prefix, "MaxKeys": _LIST_PAGE}
        while True:
            response: Mapping[str, Any] = await self._call("ListObjectsV2", self._client().list_objects_v2, parameters)
            for entry in response.get("Contents", ()):
                yield ObjectSummary(entry["Key"].removeprefix(self._prefix), int(entry["LastModified"].timestamp()))
            if not response["IsTruncated"]:
                return
            parameters["ContinuationToken"] = response["NextContinuationToken"]

    async def list_folders(self, prefix: str) -> AsyncIterator[tuple[str, list[ObjectSummary]]]:
        """Yield each folder directly below ``prefix``, which ends with a slash, with its objects. Raises the same errors as
        ``list_objects``."""
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

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Ignore missing ones.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable; some objects may still exist.
        """
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[start : start + _DELETE_BATCH]]
            parameters: dict[str, object] = {"Delete": {"Objects": batch, "Quiet": True}}
            response = await self._call("DeleteObjects", self._client().delete_objects, parameters)
            if response.get("Errors"):
                raise StorageUnavailable("Some objects could not be removed; try again.", retry_after=1)
