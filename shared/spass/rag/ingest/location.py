"""Where uploaded files lie in the bucket: ``uploads/<tenant>/<index>/<upload>/<filename>``, as a presigned form puts them, or
``uploads/<tenant>/<index>/<any path>``, as the operator may."""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from spass.aws.uploads import UPLOADS_PREFIX
from spass.core.ids import RAG_ID, IndexId, TenantId, UploadId

UPLOAD_ID: Final = re.compile(r"upl_[0-9a-z]{26}")
_INDEX_ID: Final = re.compile(RAG_ID)
_HASH_BYTES: Final = 15
_BEFORE_ALL_TIMES: Final = "00"


@dataclass(frozen=True, slots=True)
class Location:
    """A file's place. ``key`` is relative to ``uploads/<tenant>/``; ``upload`` is the upload that a form was given out for, if
    the key names one; ``filename``, empty if the key names a folder, may hold slashes where the operator chose the key."""

    tenant: TenantId
    index: IndexId
    key: str
    upload: UploadId | None
    filename: str

    def upload_of(self, revision: str) -> UploadId:
        """The id of the upload that is this ``revision`` of the object, where no form was given out for it: the same for
        everybody who asks. Such ids sort before all that are made of the time."""
        digest = hashlib.sha256(f"{self.key}\0{revision}".encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]
        return UploadId(f"upl_{_BEFORE_ALL_TIMES}{base64.b32hexencode(digest).decode().lower()}")


def upload_key(index: IndexId, upload: UploadId, filename: str) -> str:
    """The key, relative to ``uploads/<tenant>/``, at which a presigned form puts its file."""
    return f"{index}/{upload}/{filename}"


def locate(object_key: str) -> Location | None:
    """The place that a whole key of the bucket names; None when its tenant or its index cannot be one."""
    tenant, _, key = object_key.removeprefix(UPLOADS_PREFIX).partition("/")
    index, slash, path = key.partition("/")
    if not object_key.startswith(UPLOADS_PREFIX) or not tenant or not slash or not _INDEX_ID.fullmatch(index):
        return None
    upload, _, filename = path.partition("/")
    if UPLOAD_ID.fullmatch(upload) and filename and "/" not in filename:
        return Location(TenantId(tenant), IndexId(index), key, UploadId(upload), filename)
    return Location(TenantId(tenant), IndexId(index), key, None, "" if path.endswith("/") else path)
