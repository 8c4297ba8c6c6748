"""The content of a message in OpenAI's form: a text, or parts, which may be images in a user's message."""

import base64
import binascii
import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from spass.core.messages import Image

_DATA_URL: Final = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,", re.IGNORECASE)
_IMAGE_URL: Final = re.compile(r"https://[^\s/?#@]+([/?#]\S*)?")
_MAX_URL_CHARACTERS: Final = 8192
_UNSUPPORTED_PARTS: Final = ("image_url", "input_audio", "file")
_DETAILS: Final[dict[object, Literal["auto", "low", "high"] | None]] = {None: None, "auto": "auto", "low": "low", "high": "high"}

_TEXT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_IMAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "type": "object",
            "properties": {
                "url": {
                    "type": "string",
                    "description": "An https: address, or the picture itself as a data: URL in base64.",
                    "pattern": r"^(https://[a-z0-9.]+|data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/]{4})+)$",
                },
                "detail": {"enum": ["auto", "low", "high", None]},
            },
            "required": ["url"],
        },
    },
    "required": ["type", "image_url"],
}


def _schema(part: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]})


def _join_text(value: object) -> object:
    """Join a list of text parts with line breaks. Return any other value unchanged."""
    return "\n".join(map(_read_text, value)) if isinstance(value, list) else value


def _read_parts(value: object) -> tuple[str | Image, ...]:
    """Return texts and images in their order."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise PydanticKnownError("string_type")
    return tuple(
        _read_image(part) if _part_type(part) == "image_url" else _read_text(part, "text or image_url") for part in value
    )


def _part_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _read_text(part: object, supported: str = "text") -> str:
    kind = _part_type(part)
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise _part_error('a content part is {"type": "text", "text": "…"}')
    if kind not in ("text", "refusal"):
        named = f"of type '{kind}'" if kind in _UNSUPPORTED_PARTS else "of this type"
        raise _part_error(f"parts {named} are not supported here by this gateway; send {supported}")
    text = part.get(kind)
    if not isinstance(text, str):
        raise _part_error('a content part is {"type": "text", "text": "…"}')
    return text


def _read_image(part: object) -> Image:
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(image, dict) or not isinstance(url, str):
        raise _part_error('a picture is {"type": "image_url", "image_url": {"url": "…", "detail": "auto"}}')
    detail = image.get("detail")
    if not isinstance(detail, str | None) or detail not in _DETAILS:
        raise _part_error("a picture's detail is auto, low or high")
    return Image(_normalize_url(url), _DETAILS[detail])


def _normalize_url(url: str) -> str:
    """Return the URL of an image with a normalized ``data:`` prefix."""
    if url[:5].lower() != "data:":
        if len(url) > _MAX_URL_CHARACTERS or not _IMAGE_URL.fullmatch(url):
            raise _part_error("a picture's url is an https: address or a data: URL")
        return url
    prefix = _DATA_URL.match(url)
    if not prefix:
        raise _part_error("a picture's data: URL begins with data:image/…;base64, where … is png, jpeg, gif or webp")
    data = url[prefix.end() :]
    try:
        picture = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        picture = b""
    if not picture:
        raise _part_error("a picture's data: URL does not hold valid base64")
    return f"data:image/{prefix[1].lower().replace('jpg', 'jpeg')};base64,{data}"


def _part_error(message: str) -> PydanticCustomError:
    return PydanticCustomError("content_part", "{message}", {"message": message})


Text = Annotated[str, BeforeValidator(_join_text), _schema(_TEXT_SCHEMA)]
TextAndImages = Annotated[
    tuple[str | Image, ...], BeforeValidator(_read_parts), _schema({"anyOf": [_TEXT_SCHEMA, _IMAGE_SCHEMA]})
]
