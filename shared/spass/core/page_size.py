"""How much of a list one answer may hold.

Short routes answer through a Lambda's response: at most 6 MiB, in which the body is a JSON string, so that what JSON escapes
counts twice. A body of 4 MiB that quotes JSON may be 6.5 MB there.
"""

from typing import Final

PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends before its entries weigh more than this as they stand in the body."""
PAGE_EVENT_BYTES: Final = 5_500_000
"""And before they weigh more than this inside the response, which also holds the headers."""

_TWO_BYTES: Final = b'"\\\n\r\t'
_SIX_BYTES: Final = bytes(code for code in range(32) if code not in _TWO_BYTES)


_AROUND_ENTRIES: Final = 1024
"""Enough for what stands in a page beside its entries: the names and the cursor."""


class PageSizeLimit:
    """What is left of one page. ``beside`` is what the answer adds to each entry that ``takes`` does not see."""

    def __init__(self, *, beside: bytes = b"") -> None:
        self._body = PAGE_BYTES - _AROUND_ENTRIES
        self._event = PAGE_EVENT_BYTES - _AROUND_ENTRIES
        self._beside = beside + b","
        self._empty = True

    def takes(self, entry: bytes) -> bool:
        """Whether the page takes ``entry``, a member of the list as JSON; it has less room then. The first one always fits: a
        page is never empty where there is something to show.
        """
        body = self._body - len(entry) - len(self._beside)
        event = self._event - event_bytes(entry) - event_bytes(self._beside)
        if not self._empty and (body < 0 or event < 0):
            return False
        self._body, self._event, self._empty = body, event, False
        return True


def event_bytes(body: bytes) -> int:
    """The size of UTF-8 text inside an event, where it is a JSON string: quotes, backslashes and newlines are written as two
    bytes, other control characters as six.
    """
    escaped = len(body) - len(body.translate(None, _TWO_BYTES))
    control = len(body) - len(body.translate(None, _SIX_BYTES))
    return len(body) + escaped + 5 * control
