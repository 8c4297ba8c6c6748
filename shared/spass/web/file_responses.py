"""Responses that are bytes: a file, or an archive as it is read. ETags, and the preconditions that name them (RFC 9110, sections
8.8.3 and 13.1)."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spass.core.errors import InvalidRequest
from spass.web.bodies import ARCHIVE_TYPE, FILE_TYPE
from spass.web.exchange import IS_HEAD
from spass.web.public_routing import header_parameter

# A browser must not guess that a file is a page or a script.
_NO_SNIFFING: Final = {"X-Content-Type-Options": "nosniff"}

NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "`If-None-Match` names the content of the file."}}
_TAG: Final = r'(?:W/)?"[!#-~\x80-\xff]*"'
# A list may have empty elements, which count as absent (RFC 9110, section 5.6.1).
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")
_ANY: Final = "*"
_WEAK: Final = "W/"

IF_MATCH: Final = header_parameter("If-Match", "Do nothing unless the file has one of these ETags, or exists if this is `*`.")
IF_NONE_MATCH: Final = header_parameter(
    "If-None-Match", "Do nothing if the file has one of these ETags, or exists if this is `*`."
)


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
        """Read the preconditions of a request. Raise InvalidRequest if a header is neither ``*`` nor a list of quoted ETags."""
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
    """Return whether the client already has the content with this SHA-256: ``If-None-Match`` names it. Raise InvalidRequest if
    the header is malformed."""
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


class FileContent(Response):
    """A file, as OpenAPI describes it."""

    media_type = FILE_TYPE


class ArchiveContent(Response):
    """An archive, as OpenAPI describes it."""

    media_type = ARCHIVE_TYPE


async def answer_file(request: Request, sha256: str, size: int, read: Callable[[], Awaitable[bytes]]) -> Response:
    """Return the file of ``size`` bytes that ``read`` returns, or 304 if the client has its content. HEAD does not read it. Raise
    InvalidRequest if ``If-None-Match`` is malformed, and SpassError if the file cannot be read."""
    headers = {"ETag": etag(sha256), **_NO_SNIFFING}
    if has_content(request.headers, sha256):
        return Response(status_code=304, headers=headers)
    if request.scope.get(IS_HEAD):
        return FileContent(headers={**headers, "Content-Length": str(size)})
    return FileContent(await read(), headers=headers)


async def stream_archive(request: Request, chunks: AsyncGenerator[bytes, None]) -> Response:
    """Return a response with ``chunks``. Wait for the first one, so that a failure before it gets its own HTTP status. HEAD reads
    none. Raise SpassError if the first chunk cannot be read."""
    if request.scope.get(IS_HEAD):
        return StreamingResponse((), media_type=ARCHIVE_TYPE, headers=_NO_SNIFFING)
    first = await anext(chunks, b"")
    return StreamingResponse(_continue(first, chunks), media_type=ARCHIVE_TYPE, headers=_NO_SNIFFING)


async def _continue(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk
