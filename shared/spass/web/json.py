"""Strict JSON in, UTF-8 JSON out.

The standard parser accepts more than JSON (NaN, duplicate keys, halves of surrogate pairs) and can be made to work hard by small
bodies (deep nesting, numbers of a million digits). What passes is one object that every floor can store and write back.
"""

import json
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Final

from starlette.responses import Response

from spass.core.errors import InvalidRequest, PayloadTooLarge
from spass.core.messages import Json

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_KEYS: Final = 1000
"""Keys of one object. Each unknown key is reported by validation, so their number must be bounded before it."""
MAX_ITEMS: Final = 10_000
"""Items of one list, for the same reason. No list of the contract may be nearly as long."""
MAX_DIGITS: Final = 64

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(chunks: AsyncIterable[bytes], content_length: str | None) -> bytes:
    """The whole body.

    Raises:
        PayloadTooLarge: it says that it is over 4 MiB, or turns out to be.
    """
    if content_length is not None and content_length.isdecimal() and _is_over(content_length):
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(chunk)
    return b"".join(parts)


def _is_over(content_length: str) -> bool:
    digits = content_length.lstrip("0")
    return len(digits) > 12 or int(digits or "0") > MAX_BODY_BYTES


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"A body may hold {MAX_BODY_BYTES} bytes at most.", details={"max_bytes": MAX_BODY_BYTES})


def check_content_type(value: str | None) -> None:
    """Accepts JSON and silence.

    Raises:
        InvalidRequest: the body says that it is something else.
    """
    if value is None:
        return
    media_type, _, parameters = value.partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not (media_type.startswith("application/") and media_type.endswith("+json")):
        raise InvalidRequest("Send the body as JSON, with Content-Type: application/json.", param="Content-Type")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters.lower())
    if charset and charset[1] not in {"utf-8", "utf8", "us-ascii"}:
        raise InvalidRequest("Send the body in UTF-8.", param="Content-Type")


def parse_object(body: bytes) -> dict[str, Json]:
    """The one JSON object that ``body`` is.

    Raises:
        InvalidRequest: it is none, or not one that can be stored and written back.
    """
    if not body.strip():
        raise InvalidRequest("The body is empty; send a JSON object.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 (byte {error.start}).") from None
    value = _parse(text)
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    # Without as many brackets nothing is nested too deep, without as many commas no list is too long: that decides most bodies.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH or body.count(b",") >= MAX_ITEMS:
        _check_shape(value)
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
    return value


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            details={"errors": [{"loc": ["body", error.pos], "message": error.msg, "type": "json_invalid"}]},
        ) from None
    except RecursionError:
        raise _too_deep() from None
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(pairs) > MAX_KEYS:
        raise InvalidRequest(f"An object may hold {MAX_KEYS} keys at most.")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("The body is not JSON: a key stands twice in one object.")
    return found


def _refuse_constant(name: str) -> Json:
    raise InvalidRequest(f"The body is not JSON: {name} is no JSON number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise InvalidRequest("The body holds a number that is too large.")
    return number


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidRequest(f"The body holds a number of more than {MAX_DIGITS} digits.")
    return int(digits)


def _check_shape(value: Json) -> None:
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _children(parent: Json) -> Iterable[Json]:
    if isinstance(parent, dict):
        return parent.values()
    if not isinstance(parent, list):
        return ()
    if len(parent) > MAX_ITEMS:
        raise InvalidRequest(f"A list may hold {MAX_ITEMS} items at most.")
    return parent


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _check_surrogates(value: Json) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest("The body holds half of a surrogate pair, which is no character.") from None


def dump(value: Json) -> bytes:
    """``value`` as UTF-8 JSON. Text of a model that is no Unicode is answered with question marks rather than not at all."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def json_response(value: Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(value), status_code=status, headers=headers, media_type="application/json")
