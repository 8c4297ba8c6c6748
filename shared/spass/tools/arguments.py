"""Parse the arguments of a tool call, and describe validation errors to the model."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from pydantic import ValidationError

from spass.core.errors import InvalidRequest
from spass.core.field_paths import field_path, path_within
from spass.core.json import InvalidJson, read_object, replace_surrogates
from spass.core.messages import Json
from spass.core.text_checks import end_sentence
from spass.tenancy.validation_messages import explain_error
from spass.tools.base import ToolError

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
MAX_UNREADABLE_CHARACTERS: Final = 32 * 1024
"""Characters that are shown of arguments that are not a JSON object. Each can take six bytes of an event's JSON, and an event
must fit in an item of the table."""

_MAX_ERRORS: Final = 10
_MAX_NAME_CHARACTERS: Final = 64
_MAX_MESSAGE_CHARACTERS: Final = 300


class InvalidArguments(ToolError):
    """The arguments are not valid. ``errors`` has one entry per field with ``loc`` (the path in the arguments), ``message`` and
    ``type``."""

    def __init__(self, message: str, errors: Sequence[Mapping[str, Json]] = ()) -> None:
        super().__init__(message, code="invalid_arguments")
        self.errors = tuple(errors)

    def as_request_error(self) -> InvalidRequest:
        """Return the error for a caller that sent the arguments inside a request body."""
        errors = self.errors or ({"loc": [], "message": self.message, "type": self.code},)
        paths = [["arguments", *cast("list[Json]", error["loc"])] for error in errors]
        located: list[Json] = [{**error, "loc": ["body", *path]} for error, path in zip(errors, paths, strict=True)]
        return InvalidRequest(self.message, param=".".join(map(str, paths[0])), details={"errors": located})


def parse(text: str) -> Mapping[str, Json]:
    """Return the JSON object in ``text``. Read an empty text as ``{}``: some models send it for a tool without arguments.

    Raises:
        InvalidArguments: the text is too long, too deep, or not a JSON object that ``read_object`` accepts.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidArguments(f"The arguments are longer than {MAX_BYTES} bytes. Send less in one call.")
    if not text.strip():
        return {}
    try:
        return read_object(text, max_depth=MAX_DEPTH)
    except InvalidJson as error:
        raise InvalidArguments(f"The arguments cannot be read: {error.reason}. Write one JSON object.") from None


def arguments_for_display(text: str) -> Json:
    """Return the JSON object in ``text``, or its first ``MAX_UNREADABLE_CHARACTERS`` if it is not a JSON object."""
    try:
        return parse(text)
    except InvalidArguments:
        return replace_surrogates(text[:MAX_UNREADABLE_CHARACTERS])


def describe_validation_error(error: ValidationError, arguments: Mapping[str, Json]) -> InvalidArguments:
    """Return ``error`` as an error for the model, with one entry per field."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
    errors: list[Mapping[str, Json]] = []
    descriptions = []
    for detail in details:
        path = path_within(arguments, detail["loc"], missing=detail["type"] == "missing")
        loc: list[Json] = [part if isinstance(part, int) else part[:_MAX_NAME_CHARACTERS] for part in path]
        message = explain_error(detail["type"], detail["msg"])[:_MAX_MESSAGE_CHARACTERS]
        errors.append({"loc": loc, "message": message, "type": detail["type"]})
        descriptions.append(f"{field_path(loc) or 'arguments'}: {message}")
    return InvalidArguments(f"The arguments do not fit this tool. {end_sentence('; '.join(descriptions))}", errors)
