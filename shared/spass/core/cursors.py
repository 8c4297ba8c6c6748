"""Encode a position in a list as an opaque cursor, which is valid only for this list and its owner."""

import base64
import binascii
import hashlib
import re
from typing import Final

from spass.core.errors import InvalidRequest
from spass.core.ids import RAG_ID

AN_ID: Final = re.compile(RAG_ID)
"""The pattern of positions in a list that is sorted by id."""

_CHECK_BYTES: Final = 12


def encode_cursor(scope: str, position: str) -> str:
    """Return a cursor for ``position``. ``scope`` names the list and its owner (tenant, user, agent or index)."""
    body = position.encode()
    return base64.urlsafe_b64encode(_check(scope, body) + body).decode().rstrip("=")


def decode_cursor(scope: str, cursor: str, position: re.Pattern[str] = AN_ID) -> str:
    """Return the position in ``cursor``. A client can forge a cursor, so a caller must handle every match of ``position``.

    Raises:
        InvalidRequest: it is not a cursor, or belongs to another scope.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        check, body = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        match = position.fullmatch(body.decode()) if check == _check(scope, body) else None
    except (binascii.Error, ValueError):
        match = None
    if match is None:
        raise cursor_mismatch()
    return match[0]


def cursor_mismatch() -> InvalidRequest:
    return InvalidRequest("This cursor does not belong to this list; start again without one.", param="cursor")


def _check(scope: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=hashlib.sha256(scope.encode()).digest(), digest_size=_CHECK_BYTES).digest()
