"""A tool is a pydantic model of one call: its fields are the arguments, its docstring is the description, ``run`` does the work.

To add a tool, write one subclass of ``Tool`` and one line in ``registry.TOOLS``. The docstring and the field descriptions are
prompts: they are all that a model knows about the tool.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, cast

from pydantic import ValidationError

from spass.core.errors import InvalidRequest
from spass.core.ids import ApprovalId
from spass.core.json import InvalidJson, read_object, replace_surrogates
from spass.core.messages import Json, ToolSpec
from spass.core.text_checks import end_sentence
from spass.tenancy.strict_body import StrictBody
from spass.tenancy.validation_messages import explain_error, field_path, path_within

if TYPE_CHECKING:  # most of these import numpy, which the description of a tool does not need
    from spass.rag.index.embedding import Embedder
    from spass.rag.search.reader import Reader
    from spass.rag.write.delete import IndexDeleter
    from spass.rag.write.writer import Writer

TOOL_UNAVAILABLE: Final = "tool_unavailable"
TOOL_FAILED: Final = "tool_failed"


class ToolError(Exception):
    """A tool failed. ``message`` is written for the model and says what to do instead. ``waiting`` and ``versions`` are what the
    call did before (``ToolOutcome``)."""

    def __init__(
        self,
        message: str,
        *,
        code: str = TOOL_FAILED,
        waiting: tuple[ApprovalId, ...] = (),
        versions: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.waiting = waiting
        self.versions = versions


@dataclass(frozen=True, slots=True)
class Rag:
    """The parts of ``rag`` that tools use."""

    embedder: "Embedder"
    reader: "Reader"
    writer: "Writer"
    deleter: "IndexDeleter"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call with what belongs to it, which no model receives: ``ToolOutcome`` describes the fields. ``code`` is
    the code of the error, if the call failed. ``text`` is the result as compact JSON, if its size was limited already."""

    result: Json
    rich: tuple[Json, ...] = ()
    approval: Mapping[str, Json] | None = None
    waiting: tuple[ApprovalId, ...] = ()
    versions: tuple[int, ...] = ()
    code: str | None = None
    text: str | None = None

    @property
    def failed(self) -> bool:
        return self.code is not None

    @property
    def error(self) -> Mapping[str, Json]:
        """Return the error of a failed call: its ``code`` and ``message``."""
        return cast("Mapping[str, Mapping[str, Json]]", self.result)["error"]


Returned: TypeAlias = "Json | CallResult"
"""What a tool returns: its result alone, or with what belongs to it."""


class Tool(StrictBody):
    """One call of a tool, with validated arguments. The name of the class tells the tool's: ``RagQuery`` is ``rag_query``."""

    tool_name: ClassVar[str]
    category: ClassVar[str] = "other"
    """What the tool is for, in one word. Clients group tools by it, and the prompts of some agents name it."""
    timeout: ClassVar[float] = 10.0
    """Seconds after which a call is cancelled."""
    admin_only: ClassVar[bool] = False
    """True if only an admin's token may call the tool. A tool must not give its caller a right that the HTTP routes deny."""

    if TYPE_CHECKING:  # pydantic would evaluate these types
        run: ClassVar[Callable[..., Awaitable[Returned]]]
        """``async def run(self, scope, *needs)`` returns the result. ``needs`` is what the toolset holds for the tool. A
        tool acts only within the tenant of ``scope``.

        Raises:
            ToolError: the model reads its message instead of a result.
            SpassError: the model reads its code and message.
        """
        run_approved: ClassVar[Callable[..., Awaitable[Returned]]]
        """``async def run_approved(self, effect, ending, scope, *needs)`` of a gated tool makes the change that was stored as
        ``effect``, and ends its approval by ``ending`` in the same transaction.

        Raises:
            ToolError, SpassError: the call failed; nothing was changed, and the approval has not ended.
            ApprovalDecided: another decision ended the approval.
        """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.tool_name = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    @cache
    def spec(cls) -> ToolSpec:
        """Return the tool as a model sees it. Cached: building it takes about as long as a read of the table."""
        schema = cls.model_json_schema()
        parameters = {key: value for key, value in schema.items() if key not in ("title", "description", "$defs")}
        description = inspect.cleandoc(cls.__doc__ or "")
        return ToolSpec(cls.tool_name, description, _inline_schema(parameters, schema.get("$defs", {})), category=cls.category)


_REFERENCE: Final = "#/$defs/"


def _inline_schema(schema: Mapping[str, Json], definitions: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return ``schema`` without references, generated titles and null defaults.

    Not every provider follows references. Pydantic's titles and null defaults cost tokens. A property named ``title`` stays.
    """
    output: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            output[key] = {name: _inline_value(field, definitions) for name, field in value.items()}
        elif (key == "title" and isinstance(value, str)) or (key == "default" and value is None):
            continue
        elif key == "$ref" and isinstance(value, str):
            output |= _inline_schema(definitions[value.removeprefix(_REFERENCE)], definitions)
        else:
            output[key] = _inline_value(value, definitions)
    return output


def _inline_value(value: Json, definitions: Mapping[str, Mapping[str, Json]]) -> Json:
    if isinstance(value, Mapping):
        return _inline_schema(value, definitions)
    return [_inline_value(inner, definitions) for inner in value] if isinstance(value, list) else value


MAX_ARGUMENTS_BYTES: Final = 64 * 1024
MAX_ARGUMENTS_DEPTH: Final = 32
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


def parse_arguments(text: str) -> Mapping[str, Json]:
    """Return the JSON object in ``text``. Read an empty text as ``{}``: some models send it for a tool without arguments. Raise
    InvalidArguments if the text is too long, too deep, or not a JSON object that ``read_object`` accepts."""
    if len(text) > MAX_ARGUMENTS_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_ARGUMENTS_BYTES:
        raise InvalidArguments(f"The arguments are longer than {MAX_ARGUMENTS_BYTES} bytes. Send less in one call.")
    if not text.strip():
        return {}
    try:
        return read_object(text, max_depth=MAX_ARGUMENTS_DEPTH)
    except InvalidJson as error:
        raise InvalidArguments(f"The arguments cannot be read: {error.reason}. Write one JSON object.") from None


def arguments_for_display(text: str) -> Json:
    """Return the JSON object in ``text``, or its first ``MAX_UNREADABLE_CHARACTERS`` if it is not a JSON object."""
    try:
        return parse_arguments(text)
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
