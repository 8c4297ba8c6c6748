"""The arguments of a tool call: read from the text a model wrote, and said back to it where they are wrong."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from spass.core.field_paths import field_path, path_within
from spass.core.json import InvalidJson, read_object, replace_surrogates
from spass.core.messages import Json
from spass.tools.base import ToolError

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32

_MAX_REPORTED: Final = 10
_MAX_LOC: Final = 64
_MAX_MESSAGE: Final = 300


class InvalidArguments(ToolError):
    """The arguments cannot be right. ``errors`` says where: one entry per field, its ``loc`` inside the arguments."""

    def __init__(self, message: str, errors: Sequence[Mapping[str, Json]] = ()) -> None:
        super().__init__(message, code="invalid_arguments")
        self.errors = tuple(errors)


def parse(text: str) -> Mapping[str, Json]:
    """The JSON object in ``text``. No text at all is an empty object: some models write that for a tool without arguments.

    Raises:
        InvalidArguments: it is no JSON object that JSON could write again.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidArguments(f"The arguments are longer than {MAX_BYTES} bytes. Send less at once.")
    if not text.strip():
        return {}
    try:
        return read_object(text, max_depth=MAX_DEPTH)
    except InvalidJson as error:
        raise InvalidArguments(f"The arguments cannot be read: {error.reason}. Write one JSON object.") from None


def arguments_for_display(text: str) -> Json:
    """``text`` for whoever reads what was called: as the object that it is, or, where it is none, its beginning."""
    try:
        return parse(text)
    except InvalidArguments:
        return replace_surrogates(text[:MAX_BYTES])


def describe_validation_error(error: ValidationError, arguments: Mapping[str, Json]) -> InvalidArguments:
    """Return what pydantic found wrong with ``arguments``, for the model: field by field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_REPORTED]
    errors: list[Mapping[str, Json]] = []
    listed = []
    for detail in found:
        path = path_within(arguments, detail["loc"], missing=detail["type"] == "missing")
        loc: list[Json] = [part if isinstance(part, int) else part[:_MAX_LOC] for part in path]
        message = detail["msg"].removeprefix("Value error, ")[:_MAX_MESSAGE]
        errors.append({"loc": loc, "message": message, "type": detail["type"]})
        listed.append(f"{field_path(loc) or 'arguments'}: {message}")
    return InvalidArguments(f"The arguments do not fit this tool. {'; '.join(listed)}.", errors)
