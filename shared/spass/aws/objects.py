"""The objects of a tenant in the bucket, under ``T/<tenant>/``, through boto3."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

from spass.aws.error_translation import storage_errors
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.store.invocation import ServiceCall, invoke, retry_once
from spass.store.objects import ObjectMissing, ObjectSummary, TenantObjects

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

T = TypeVar("T")

_SKIP_BLOCK_BYTES: Final = 2**20
_LIST_PAGE: Final = 1000  # the maximum of ListObjectsV2
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "404", "InvalidRange"})
_DELETE_BATCH: Final = 1000  # the maximum of DeleteObjects


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

        return await invoke(ServiceCall("s3", operation, call), run)


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


class S3Objects(Folder, TenantObjects):
    """Objects of one tenant. Keys are relative to ``T/<tenant>/``."""

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, tenant: TenantId) -> None:
        super().__init__(client, bucket, f"T/{tenant}/")

    async def put(self, key: str, body: bytes, *, transient: bool = False) -> None:
        parameters: dict[str, object] = {"Key": self._prefix + key, "Body": body}
        if transient:
            parameters["Tagging"] = "lifetime=days"
        await retry_once(lambda: self._call("PutObject", self._client().put_object, parameters))

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        if start is not None and end is not None and end <= start:
            return b""
        parameters: dict[str, object] = {"Key": self._prefix + key}
        if start is not None or end is not None:
            parameters["Range"] = byte_range(start or 0, end)
        return await self._read(parameters)

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectSummary]:
        parameters: dict[str, object] = {"Prefix": self._prefix + prefix, "MaxKeys": _LIST_PAGE}
        while True:
            response: Mapping[str, Any] = await self._call("ListObjectsV2", self._client().list_objects_v2, parameters)
            for entry in response.get("Contents", ()):
                yield ObjectSummary(entry["Key"].removeprefix(self._prefix), int(entry["LastModified"].timestamp()))
            if not response["IsTruncated"]:
                return
            parameters["ContinuationToken"] = response["NextContinuationToken"]

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[start : start + _DELETE_BATCH]]
            parameters: dict[str, object] = {"Delete": {"Objects": batch, "Quiet": True}}
            response = await self._call("DeleteObjects", self._client().delete_objects, parameters)
            if response.get("Errors"):
                raise StorageUnavailable("Some objects could not be removed; try again.", retry_after=1)
