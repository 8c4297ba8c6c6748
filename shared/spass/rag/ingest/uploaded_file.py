"""Uploaded files: their keys in the bucket, and the upload to which each file belongs.

A presigned form puts a file at ``uploads/<tenant>/<index>/<upload>/<filename>``; the operator may put one at
``uploads/<tenant>/<index>/<any path>``.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from spass.core.ids import RAG_ID, IndexId, TenantId, UploadId, id_pattern
from spass.store.bucket import UPLOADS_PREFIX

UPLOAD_ID: Final = re.compile(id_pattern("upl"))
_INDEX_ID: Final = re.compile(RAG_ID)
_HASH_BYTES: Final = 15
_BEFORE_ALL_TIMES: Final = "00"


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One version of a file in the bucket.

    ``key`` is relative to ``uploads/<tenant>/``. ``form_upload`` is the upload whose form was used, if the key names one.
    ``filename`` is empty if the key names a folder; it may contain slashes if the operator chose the key. ``version`` is None if
    the bucket is not versioned; ``revision`` always differs between the files of one key. ``sequencer`` orders the files of one
    key by the time at which they were put: the file with the greater string is newer. It is empty if the event has none.
    """

    tenant: TenantId
    index: IndexId
    key: str
    form_upload: UploadId | None
    filename: str
    version: str | None
    revision: str
    sequencer: str = ""

    @property
    def own_upload(self) -> UploadId:
        """Return the upload id that is derived from key and revision. Such ids sort before all ids that begin with a time."""
        return own_upload(self.key, self.revision)


def own_upload(key: str, revision: str) -> UploadId:
    """Return the id of the upload that belongs to the file ``revision`` of ``key`` alone."""
    digest = hashlib.sha256(f"{key}\0{revision}".encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]
    return UploadId(f"upl_{_BEFORE_ALL_TIMES}{base64.b32hexencode(digest).decode().lower()}")


def form_key(index: IndexId, upload: UploadId, filename: str) -> str:
    """Return the key at which a presigned form puts its file, relative to ``uploads/<tenant>/``."""
    return f"{index}/{upload}/{filename}"


def uploaded_file(object_key: str, version: str | None, revision: str, sequencer: str = "") -> UploadedFile | None:
    """Return the file with the full key ``object_key``, or None if the key does not contain a tenant and an index."""
    tenant, _, key = object_key.removeprefix(UPLOADS_PREFIX).partition("/")
    index, slash, path = key.partition("/")
    if not object_key.startswith(UPLOADS_PREFIX) or not tenant or not slash or not _INDEX_ID.fullmatch(index):
        return None
    upload, _, filename = path.partition("/")
    is_from_form = UPLOAD_ID.fullmatch(upload) and filename and "/" not in filename
    if not is_from_form:
        filename = "" if path.endswith("/") else path
    form_upload = UploadId(upload) if is_from_form else None
    return UploadedFile(TenantId(tenant), IndexId(index), key, form_upload, filename, version, revision, sequencer)
