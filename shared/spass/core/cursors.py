"""Opaque cursors: a position in a list, bound to whose list it is."""

import base64
import binascii
import hashlib
import json

from spass.core.errors import InvalidRequest

_CHECK_BYTES = 12


def encode_cursor(scope: str, position: str) -> str:
    """A cursor for ``position`` that only ``decode_cursor`` with the same ``scope`` accepts.

    A scope names the list and its owner (tenant, user, agent or index).
    """
    body = json.dumps(position).encode()
    return base64.urlsafe_b64encode(_check(scope, body) + body).decode().rstrip("=")


def decode_cursor(scope: str, cursor: str) -> str:
    """The position in ``cursor``.

    Raises:
        InvalidRequest: it was not made for this scope, or is no cursor at all.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        check, body = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        position = json.loads(body) if check == _check(scope, body) else None
    except (binascii.Error, ValueError):
        position = None
    if not isinstance(position, str):
        raise InvalidRequest("This cursor does not belong to this list; start again without one.", param="cursor")
    return position


def _check(scope: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=hashlib.sha256(scope.encode()).digest(), digest_size=_CHECK_BYTES).digest()
