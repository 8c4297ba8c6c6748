"""Bodies that are bytes: a file or an archive. Nothing parses them or looks into them.

API Gateway passes bodies on unchanged only for the media types that ``infra/routes.py`` lists. It decodes all others as UTF-8.
"""

from typing import Annotated, Final

from fastapi import Depends
from starlette.requests import Request

from spass.core.errors import InvalidRequest

FILE_TYPE: Final = "application/octet-stream"
ARCHIVE_TYPE: Final = "application/zip"

DECODED_AS_TEXT: Final = "spass.decoded_as_text"
"""The key of an ASGI scope that is True if API Gateway decoded the body as text."""

_MAX_SHOWN_CHARACTERS: Final = 100


def check_raw_body(request: Request, media_type: str) -> None:
    """Check that the body arrived as ``media_type``, byte for byte. Parameters of the Content-Type are ignored.

    Raises:
        InvalidRequest: there is no Content-Type, more than one, or another one, or API Gateway decoded the body as text.
    """
    values = request.headers.getlist("content-type")
    media_types = [value.partition(";")[0].strip().lower() for value in values]
    if media_types == [media_type] and not request.scope.get(DECODED_AS_TEXT):
        return
    sent = f"is {', '.join(values)[:_MAX_SHOWN_CHARACTERS]}" if values else "is missing"
    raise InvalidRequest(
        f"The Content-Type {sent}. Send the bytes with Content-Type: {media_type}, because API Gateway decodes other bodies as "
        "text and so changes them.",
        param="Content-Type",
    )


async def _read_raw_body(request: Request) -> bytes:
    return await request.body()


RawBody = Annotated[bytes, Depends(_read_raw_body)]
"""The body of a route of ``raw_router``, at most 4 MiB."""
