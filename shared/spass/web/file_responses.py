"""Answers that are bytes: a file, or an archive as it is read."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spass.web.edge import IS_HEAD
from spass.web.etags import etag, has_content
from spass.web.raw_body import ARCHIVE_TYPE, FILE_TYPE

# A browser must not guess that a file is a page or a script.
_NO_SNIFFING: Final = {"X-Content-Type-Options": "nosniff"}

NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "`If-None-Match` names the content of the file."}}


class FileContent(Response):
    """A file, as OpenAPI describes it."""

    media_type = FILE_TYPE


class ArchiveContent(Response):
    """An archive, as OpenAPI describes it."""

    media_type = ARCHIVE_TYPE


async def answer_file(request: Request, sha256: str, size: int, read: Callable[[], Awaitable[bytes]]) -> Response:
    """Return the file of ``size`` bytes that ``read`` returns, or 304 if the client has its content. HEAD does not read it.

    Raises:
        InvalidRequest: ``If-None-Match`` is malformed.
        SpassError: the file cannot be read.
    """
    headers = {"ETag": etag(sha256), **_NO_SNIFFING}
    if has_content(request.headers, sha256):
        return Response(status_code=304, headers=headers)
    if request.scope.get(IS_HEAD):
        return FileContent(headers={**headers, "Content-Length": str(size)})
    return FileContent(await read(), headers=headers)


async def stream_archive(request: Request, chunks: AsyncGenerator[bytes, None]) -> Response:
    """Return a response with ``chunks``. Wait for the first one, so that a failure before it gets its own HTTP status. HEAD reads
    none.

    Raises:
        SpassError: the first chunk cannot be read.
    """
    if request.scope.get(IS_HEAD):
        return StreamingResponse((), media_type=ARCHIVE_TYPE, headers=_NO_SNIFFING)
    first = await anext(chunks, b"")
    return StreamingResponse(_continue(first, chunks), media_type=ARCHIVE_TYPE, headers=_NO_SNIFFING)


async def _continue(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk
