"""Read the lines of a child. None of them is trusted: code that found the child's descriptor and token could have written it."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from spass.core.code_calls import CodeRequest, Query, ToolRequest
from spass.core.json import MAX_DEPTH, InvalidJson, read_object
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.limits import MAX_FINAL_CHARS, MAX_LINE_BYTES, MAX_REASON_CHARS, MAX_REQUEST_CHARS, MAX_REQUESTS, MAX_VALUES

_LEVELS_ABOVE_ARGUMENTS: Final = 4
_UNKNOWN: Final = "wrote a line that the interpreter does not know"

Number: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _QueryRequest(_Strict):
    query: str


class _ToolRequest(_Strict):
    tool: str
    arguments: dict[str, Any]


class Effect(_Strict):
    """The code of a cell calls the outside, and the child has no reply in its journal."""

    cell: Number
    hash: Annotated[str, Field(max_length=128)]
    requests: Annotated[list[_QueryRequest | _ToolRequest], Field(min_length=1, max_length=MAX_REQUESTS)]

    def to_requests(self) -> tuple[CodeRequest, ...]:
        """Return what the code asks for."""
        return tuple(
            Query(request.query) if isinstance(request, _QueryRequest) else ToolRequest(request.tool, request.arguments)
            for request in self.requests
        )


class CellEnd(_Strict):
    """A cell has ended. ``exceeded`` names the limit that ended it, if one did."""

    number: Number
    output: str
    error: str | None
    truncated: Number
    final: Annotated[str, Field(max_length=MAX_FINAL_CHARS)] | None
    exceeded: str | None


class Diverged(_Strict):
    """A replayed cell called the outside with something else than at its first run."""

    cell: Number


Line: TypeAlias = Literal["ready", "suspended"] | Effect | CellEnd | Diverged

_RECORDS: Final[Mapping[str, type[Effect | CellEnd | Diverged]]] = {"effect": Effect, "cell": CellEnd, "diverged": Diverged}


def read_line(line: bytes, token: str) -> Line | None:
    """Return the validated line, or None if it does not begin with ``token``: then code wrote it, which changes nothing. Raise
    ChildFailed if it is not a line of the protocol, or it says that the child cannot confine itself."""
    prefix, _, text = line.partition(b" ")
    if prefix != token.encode():
        return None
    if len(line) > MAX_LINE_BYTES or _count_values(text) > MAX_VALUES:
        raise ChildFailed("wrote a line that is too long, or called the outside with too many values at once")
    try:
        ((kind, value),) = read_object(text.decode(), max_depth=MAX_DEPTH + _LEVELS_ABOVE_ARGUMENTS).items()
        record = _RECORDS[kind].model_validate(value) if kind in _RECORDS else None
    except InvalidJson as error:
        raise ChildFailed(f"called the outside with a value that cannot be sent ({error.reason})") from None
    except ValueError:  # it is not text, has not exactly one member, or is not valid
        raise ChildFailed(_UNKNOWN) from None
    match kind, value:
        case "ready", dict():
            return "ready"
        case "refused", str(reason) if len(reason) <= MAX_REASON_CHARS:
            raise ChildFailed(f"refuses to run code, because {reason}")
        case "suspended", True:
            return "suspended"
    if record is None:
        raise ChildFailed(_UNKNOWN)
    if isinstance(record, Effect) and sum(map(_count_characters, record.requests)) > MAX_REQUEST_CHARS:
        raise ChildFailed("called the outside with too much text at once")
    return record


def _count_values(text: bytes) -> int:
    """Return about the number of values in a JSON text, without reading it: half of the quotes, or the commas and the opening
    brackets outside strings. If there are few in strings and outside together, return their number."""
    few = max(text.count(b'"') // 2, sum(map(text.count, (b",", b"[", b"{"))))
    if few <= MAX_VALUES:
        return few
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if (quotes := plain.count(b'"')) > 2 * MAX_VALUES:
        return quotes // 2
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{")))


def _count_characters(request: _QueryRequest | _ToolRequest) -> int:
    return len(request.query) if isinstance(request, _QueryRequest) else len(request.model_dump_json())
