"""Fill one page of a list: at most so many entries, and at most so many bytes. A cursor is an opaque position in a list.

Short routes answer through a Lambda's response of at most 6 MiB. The body is a JSON string in it, so escaped characters count
twice: a body of 4 MiB that quotes JSON may take 6.5 MB.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from spass.core.errors import InvalidRequest
from spass.core.ids import RAG_ID

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a page in the body, in bytes."""
PAGE_EVENT_BYTES: Final = 5_500_000
"""Maximum size in bytes of a page as a JSON string in the response, which also holds the headers."""

AN_ID: Final = re.compile(RAG_ID)
"""The pattern of positions in a list that is sorted by id."""

_CHECK_BYTES: Final = 12
_TWO_BYTES: Final = b'"\\\n\r\t'
_SIX_BYTES: Final = bytes(code for code in range(32) if code not in _TWO_BYTES)

_AROUND_ENTRIES: Final = 1024
"""Bytes reserved for the member names and the cursor of a page."""


class Entry(Protocol):
    """A member of a list in an answer. It returns itself as JSON in UTF-8."""

    def to_json(self) -> bytes: ...


E = TypeVar("E", bound=Entry)


class Page(NamedTuple, Generic[E]):
    """The entries of a page, and the cursor of the next one, or None on the last page."""

    entries: list[E]
    next_cursor: str | None


async def fill_page(
    scope: str, entries: AsyncGenerator[tuple[str, E | None], None], limit: int, *, most_skipped: int | None = None
) -> Page[E]:
    """Return the first ``limit`` of ``entries``, or as many as fit in an answer. Each has a position; None is not shown. The page
    ends early after ``most_skipped`` that are not shown. ``scope`` names the list and its owner, as for ``encode_cursor``."""
    shown, last, skipped, room = list[E](), "", 0, PageSizeLimit()
    async with aclosing(entries):
        async for position, entry in entries:
            if entry is None:
                skipped += 1
                if skipped == most_skipped:
                    return Page(shown, encode_cursor(scope, position))
            elif len(shown) == limit or not room.add(entry.to_json()):
                return Page(shown, encode_cursor(scope, last))
            else:
                shown.append(entry)
                last = position
    return Page(shown, None)


class PageSizeLimit:
    """Count the bytes that are still free in one page. ``entry_overhead`` is the text that the answer adds to each entry."""

    def __init__(self, *, entry_overhead: bytes = b"") -> None:
        self._body = PAGE_BYTES - _AROUND_ENTRIES
        self._event = PAGE_EVENT_BYTES - _AROUND_ENTRIES
        self._entry_overhead = entry_overhead + b","
        self._empty = True

    @classmethod
    def fits_alone(cls, entry: bytes) -> bool:
        """Return True if ``entry`` fits in a page."""
        limit = cls()
        limit._empty = False
        return limit.add(entry)

    def add(self, entry: bytes) -> bool:
        """Add ``entry``, a member of the list as JSON. Return False if it does not fit; the first one always fits."""
        body = self._body - len(entry) - len(self._entry_overhead)
        event = self._event - event_bytes(entry) - event_bytes(self._entry_overhead)
        if not self._empty and (body < 0 or event < 0):
            return False
        self._body, self._event, self._empty = body, event, False
        return True


def event_bytes(body: bytes) -> int:
    """Return the size of UTF-8 text as a JSON string: quotes, backslashes and line breaks take two bytes, other control
    characters six."""
    escaped = len(body) - len(body.translate(None, _TWO_BYTES))
    control = len(body) - len(body.translate(None, _SIX_BYTES))
    return len(body) + escaped + 5 * control


def encode_cursor(scope: str, position: str) -> str:
    """Return a cursor for ``position``. It is valid only for ``scope``: the list and its owner (tenant, user, agent or index)."""
    body = position.encode()
    return base64.urlsafe_b64encode(_check(scope, body) + body).decode().rstrip("=")


def decode_cursor(scope: str, cursor: str, position: re.Pattern[str] = AN_ID) -> str:
    """Return the position in ``cursor``, or raise ``InvalidRequest`` if it is not a cursor of ``scope``. A client can forge a
    cursor, so a caller must handle every match of ``position``."""
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
