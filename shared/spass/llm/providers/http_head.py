"""The head of an HTTP/1.1 answer, read strictly: what it leaves open is a failure and never a guess.

Format: RFC 9112. An answer that two readers could understand differently is how one is smuggled in behind another.
"""

import re
from typing import Final, NamedTuple

LONGEST_HEAD: Final = 64 * 1024

NOT_IN_A_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no header's value may hold, neither one that is sent nor one that comes."""

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_BODILESS: Final = frozenset({204, 304})


class MalformedAnswer(Exception):
    """What came is no HTTP. The message says what of it, in our words."""


class Head(NamedTuple):
    """``length`` is None where only chunks or the end of the connection say where the body ends. ``reusable``: after the body
    the connection may carry another request.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    length: int | None
    chunked: bool
    reusable: bool

    @property
    def is_interim(self) -> bool:
        """Whether it only announces an answer that is still to come."""
        return self.status < 200


def parse_head(raw: bytes) -> Head:
    """The head that ``raw`` is, without the empty line at its end. Names of headers come in small letters.

    Raises:
        MalformedAnswer: it is none.
    """
    first, *lines = raw.split(b"\r\n")
    said = _STATUS.fullmatch(first)
    if said is None:
        raise MalformedAnswer("the status line")
    status, persistent = int(said[2]), said[1] == b"1"
    if status == 101:
        raise MalformedAnswer("another protocol, which nobody asked for")
    headers = [_header(line) for line in lines]
    lengths = set(_parts(headers, b"content-length"))
    codings = [part.lower() for part in _parts(headers, b"transfer-encoding")]
    if codings not in ([], [b"chunked"]) or len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise MalformedAnswer("how long it is")
    persistent = persistent and b"close" not in (part.lower() for part in _parts(headers, b"connection"))
    if status in _BODILESS or status < 200:
        return Head(status, headers, 0, chunked=False, reusable=persistent)
    chunked = bool(codings)
    length = int(lengths.pop()) if lengths and not chunked else None
    # Who says both has been misunderstood by somebody on the way, or wants to be.
    framed = length is not None or (chunked and not lengths)
    return Head(status, headers, length, chunked, reusable=persistent and framed)


def chunk_size(line: bytes) -> int:
    """The size that the line before a chunk says.

    Raises:
        MalformedAnswer: it says none.
    """
    said = _CHUNK.fullmatch(line)
    if said is None:
        raise MalformedAnswer("the size of a chunk")
    return int(said[1], 16)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _NAME.fullmatch(name) or NOT_IN_A_VALUE.search(value):
        raise MalformedAnswer("a header")
    return name.lower(), value


def _parts(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [part.strip(b" \t") for known, value in headers if known == name for part in value.split(b",")]
