"""The bodies of requests and responses: JSON, which is parsed strictly and written in UTF-8, and bytes, which nothing parses.

API Gateway passes bodies on unchanged only for the media types that ``infra/routes.py`` lists. It decodes all others as UTF-8.
"""

import re
from collections.abc import AsyncIterable, Mapping
from typing import Annotated, Final

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from spass.core.errors import InvalidRequest, PayloadTooLarge
from spass.core.json import InvalidJson, dump_bytes, read_object
from spass.core.messages import Json
from spass.tenancy.response_model import ResponseModel

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
FILE_TYPE: Final = "application/octet-stream"
ARCHIVE_TYPE: Final = "application/zip"

DECODED_AS_TEXT: Final = "spass.decoded_as_text"
"""The key of an ASGI scope that is True if API Gateway decoded the body as text."""
_JSON_TYPE: Final = re.compile(r"application/(json|[^/]*\+json)")
_MAX_SHOWN_CHARACTERS: Final = 100


async def read_body(chunks: AsyncIterable[bytes], content_length: str | None) -> bytes:
    """Return the whole body. Raise PayloadTooLarge if the body, or its Content-Length, is over 4 MiB."""
    if content_length is not None and content_length.isdecimal() and _exceeds_limit(content_length):
        raise _payload_too_large()
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _payload_too_large()
        parts.append(chunk)
    return b"".join(parts)


def _exceeds_limit(content_length: str) -> bool:
    digits = content_length.lstrip("0")
    return len(digits) > 12 or int(digits or "0") > MAX_BODY_BYTES


def _payload_too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"A body may have at most {MAX_BODY_BYTES} bytes.", details={"max_bytes": MAX_BODY_BYTES})


def check_content_type(value: str | None) -> None:
    """Check that the Content-Type is JSON in UTF-8, or absent. Raise InvalidRequest if ``value`` is another type or charset."""
    if value is None:
        return
    media_type, _, parameters = value.partition(";")
    if not _JSON_TYPE.fullmatch(media_type.strip().lower()):
        raise InvalidRequest("Send the body as JSON, with Content-Type: application/json.", param="Content-Type")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters.lower())
    if charset and charset[1] not in {"utf-8", "utf8", "us-ascii"}:
        raise InvalidRequest("Send the body in UTF-8.", param="Content-Type")


def parse_object(body: bytes) -> dict[str, Json]:
    """Parse ``body`` as one JSON object. Raise InvalidRequest if the body is not a JSON object, or the object cannot be stored
    and written back."""
    if not body.strip():
        raise InvalidRequest("The body is empty; send a JSON object.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 (byte {error.start}).") from None
    try:
        return read_object(text)
    except InvalidJson as error:
        message = f"The body cannot be read: {error.reason}."
        loc: list[Json] = ["body"] if error.position is None else ["body", error.position]
        raise InvalidRequest(message, details={"errors": [{"loc": loc, "message": message, "type": "json_invalid"}]}) from None


def check_raw_body(request: Request, media_type: str) -> None:
    """Check that the body arrived as ``media_type``, byte for byte. Parameters of the Content-Type are ignored. Raise
    InvalidRequest if there is no Content-Type, more than one, or another one, or API Gateway decoded the body as text."""
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


def dump(value: "Json | ResponseModel") -> bytes:
    """Return ``value`` as JSON in UTF-8. An unpaired surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return value.to_json() if isinstance(value, ResponseModel) else dump_bytes(value)


def json_response(value: "Json | ResponseModel", *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with ``value`` as its body."""
    return Response(dump(value), status_code=status, headers=headers, media_type="application/json")
