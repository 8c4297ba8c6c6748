"""ETags of files, and the preconditions of requests that name them (RFC 9110, sections 8.8.3 and 13.1)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from spass.core.errors import InvalidRequest

_TAG: Final = r'(?:W/)?"[!#-~\x80-\xff]*"'
# A list may have empty elements, which count as absent (RFC 9110, section 5.6.1).
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")
_ANY: Final = "*"
_WEAK: Final = "W/"


IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "Do nothing unless the file has one of these ETags, or exists if this is `*`.",
    "schema": {"type": "string"},
}
IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Do nothing if the file has one of these ETags, or exists if this is `*`.",
    "schema": {"type": "string"},
}
"""The headers as OpenAPI describes them."""


def etag(sha256: str) -> str:
    """Return the strong ETag of the content with this SHA-256 (hex)."""
    return f'"{sha256}"'


@dataclass(frozen=True, slots=True)
class Preconditions:
    """The ETags in ``If-Match`` and ``If-None-Match``. An empty sequence is an absent header, and ``*`` means any file."""

    match: Sequence[str]
    none_match: Sequence[str]

    @classmethod
    def of(cls, headers: Headers) -> "Preconditions":
        """Read the preconditions of a request.

        Raises:
            InvalidRequest: a header is neither ``*`` nor a list of quoted ETags.
        """
        return cls(_read(headers, "If-Match"), _read(headers, "If-None-Match"))

    def __bool__(self) -> bool:
        return bool(self.match or self.none_match)

    def hold(self, sha256: str | None) -> bool:
        """Return whether the preconditions hold for content with this SHA-256, or for an absent file if it is None.

        ``If-Match`` compares strongly: a weak ETag never matches. ``If-None-Match`` ignores the mark of weak ETags.
        """
        if sha256 is None:
            return not self.match
        tag = etag(sha256)
        if self.match and not {_ANY, tag} & {*self.match}:
            return False
        return not {_ANY, tag} & {one.removeprefix(_WEAK) for one in self.none_match}


def has_content(headers: Headers, sha256: str) -> bool:
    """Return whether the client already has the content with this SHA-256: ``If-None-Match`` names it.

    Raises:
        InvalidRequest: the header is malformed.
    """
    return not Preconditions((), _read(headers, "If-None-Match")).hold(sha256)


def _read(headers: Headers, name: str) -> Sequence[str]:
    """Return the ETags of a header, or ``*``."""
    values = headers.getlist(name)
    if not values:
        return ()
    value = ", ".join(values).strip()
    if value == _ANY:
        return (_ANY,)
    if not _TAGS.fullmatch(value):
        raise InvalidRequest(
            f'{name} is neither * nor a list of ETags. The ETag of a file is its SHA-256 in quotes: {name}: "9f86…".',
            param=name,
        )
    return re.findall(_TAG, value)
