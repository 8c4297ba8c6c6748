"""The files that a tenant's clients upload to the bucket, under ``uploads/<tenant>/``, through boto3."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from spass.aws.error_translation import storage_errors
from spass.aws.objects import Folder, byte_range, missing
from spass.core.ids import TenantId
from spass.core.time import epoch_s, now_s
from spass.store.uploads import UPLOADS_PREFIX, PresignedPost, TenantUploads, UploadedObject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BLOCK_BYTES: Final = 8 * 2**20

CredentialsOf = Callable[[], Credentials | None]

# Lambda does not say when a function's credentials expire. An invocation may take 15 minutes, so they stay valid for that long.
_INVOCATION_SECONDS: Final = 15 * 60


class S3Uploads(Folder, TenantUploads):
    """The uploaded files of one tenant. Keys are relative to ``uploads/<tenant>/``. ``client`` signs with ``credentials``."""

    def __init__(self, client: Callable[[], "S3Client"], bucket: str, tenant: TenantId, credentials: CredentialsOf) -> None:
        super().__init__(client, bucket, f"{UPLOADS_PREFIX}{tenant}/")
        self._credentials = credentials

    def presign(self, key: str, *, size: int, content_type: str, seconds: int) -> PresignedPost:
        """Sign a form that is valid for ``seconds``, or until the credentials that sign it expire, if that is earlier. S3 refuses
        the form if the signer may not put the object.
        (https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html)
        """
        with storage_errors():
            seconds = min(seconds, _valid_seconds(self._credentials()))
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
        try:
            response: Mapping[str, Any] = await self._call(
                "HeadObject", self._client().head_object, self._parameters_of(key, version)
            )
        except ClientError as error:
            raise missing(error) from None
        return UploadedObject(response.get("VersionId"), response["ContentLength"])

    async def folders(self) -> list[str]:
        names: list[str] = []
        continuation: dict[str, object] = {}
        while True:
            parameters = {"Prefix": self._prefix, "Delimiter": "/", **continuation}
            page: Mapping[str, Any] = await self._call("ListObjectsV2", self._client().list_objects_v2, parameters)
            names += [entry["Prefix"].removeprefix(self._prefix).rstrip("/") for entry in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return names
            continuation = {"ContinuationToken": page["NextContinuationToken"]}

    async def blocks(self, key: str, version: str | None, start: int, end: int) -> AsyncGenerator[bytes, None]:
        def read(at: int) -> "asyncio.Task[bytes]":
            byte_span = {"Range": byte_range(at, min(at + BLOCK_BYTES, end))}
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
        await self._call("DeleteObject", self._client().delete_object, self._parameters_of(key, version))

    def _parameters_of(self, key: str, version: str | None) -> dict[str, object]:
        parameters: dict[str, object] = {"Key": self._prefix + key}
        return parameters if version is None else parameters | {"VersionId": version}


def _valid_seconds(credentials: Credentials | None) -> int:
    """Return a lower bound of the seconds for which these credentials stay valid."""
    if credentials is None or credentials.get_frozen_credentials().token is None:
        return sys.maxsize  # a user's credentials do not expire
    # boto3 renews credentials that expire within 15 minutes before it returns them. It has no public attribute for
    # the time of expiry.
    expiry: datetime | None = getattr(credentials, "_expiry_time", None)
    return _INVOCATION_SECONDS if expiry is None else int(expiry.timestamp()) - now_s()
