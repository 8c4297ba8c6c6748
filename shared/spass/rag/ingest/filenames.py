"""Ids and metadata from the name of a file: its S3 key below the prefix of the index or upload. It may contain slashes."""

import hashlib
import re
import unicodedata
from functools import lru_cache
from typing import Final

from spass.core.json import dump_bytes

_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_ID_CHARS: Final = 112
"""An id has at most 128 characters, of which ``#`` and the number need up to 16."""
_MAX_METADATA_BYTES: Final = 1024
"""Half of the limit of metadata (2 KiB). A name is longer only if JSON escapes many of its characters."""


def document_id(filename: str, number: int) -> str:
    """Return the id for an entry without an id: ``<filename>#<number>``.

    If the filename is too long or has characters that an id must not have, remove its accents, replace each run of such
    characters by ``-``, shorten it, and add 8 hex digits of the SHA-256 of the filename.
    """
    return f"{_slug(filename)}#{number}"


@lru_cache(maxsize=16)
def metadata_name(filename: str) -> str:
    """Return the filename for the metadata of a document, cut to at most 1 KiB of JSON."""
    name = filename.encode("utf-8", "replace").decode()
    if len(dump_bytes(name)) <= _MAX_METADATA_BYTES:
        return name
    shortened = name[:_MAX_METADATA_BYTES]
    while len(dump_bytes(shortened)) > _MAX_METADATA_BYTES - len("…".encode()):
        shortened = shortened[:-1]
    return f"{shortened}…"


@lru_cache(maxsize=16)
def _slug(filename: str) -> str:
    if len(filename) <= _MAX_ID_CHARS and _SAFE_NAME.fullmatch(filename):
        return filename
    digest = hashlib.sha256(filename.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    slug = _UNSAFE.sub("-", plain).lstrip("._:-")[: _MAX_ID_CHARS - len(digest) - 1].rstrip("-")
    return f"{slug or 'file'}-{digest}"
