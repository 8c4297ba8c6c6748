"""Effects, their results and other frozen dataclasses as JSON, for a kind that runs in another process.

``decode`` validates everything, because the other process is not trusted. Every dataclass has its name as ``type``, and fields
with their default are left out.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NewType, TypeVar, Union, cast, get_args, get_origin

from spass.core import messages
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallTools,
    CellResult,
    Effect,
    FetchPage,
    HarnessResult,
    Infer,
    Keep,
    Page,
    Recall,
    Recalled,
    RecordResult,
    RunCode,
    RunHarness,
    SetState,
    Tell,
    ToolOutcome,
)
from spass.core.messages import Json

T = TypeVar("T")

_TYPE: Final = "type"
_RESULTS: Final[Mapping[type, Any]] = {
    Infer: AssistantReply,
    CallTools: tuple[ToolOutcome, ...],
    RecordResult: NoneType,
    Tell: NoneType,
    RunCode: CellResult,
    FetchPage: Page,
    RunHarness: HarnessResult,
    Recall: Recalled,
    Keep: str,
    SetState: NoneType,
}


def encode(value: object) -> Json:
    """Return a dataclass, or a tuple of them, as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = {name: getattr(value, name) for name in _fields(type(value))}
        given = {name: encode(member) for name, member in members.items() if not _is_default(type(value), name, member)}
        return {_TYPE: type(value).__name__, **given}
    if isinstance(value, Enum):
        return cast("Json", value.value)
    if isinstance(value, Mapping):
        return {key: encode(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode(member) for member in value]
    return cast("Json", value)


def decode_effect(value: Json) -> Effect | Answer:
    """Return an effect, or an answer.

    Raises:
        ValueError: ``value`` is neither.
    """
    return cast("Effect | Answer", _decode(Effect | Answer, value, "effect"))


def decode_result(effect: Effect, value: Json) -> object:
    """Return the result of ``effect``.

    Raises:
        ValueError: ``value`` is not a result of this effect.
    """
    return _decode(_RESULTS[type(effect)], value, "result")


def decode(kind: type[T], value: Json) -> T:
    """Return the dataclass ``kind``.

    Raises:
        ValueError: ``value`` is not one.
    """
    return cast("T", _decode(kind, value, kind.__name__))


def _decode(annotation: Any, value: Json, path: str) -> object:  # noqa: ANN401 (an annotation has no type of its own)
    if annotation == messages.Json:
        return value
    if isinstance(annotation, NewType):
        return _decode(annotation.__supertype__, value, path)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _decode_union(arguments, value, path)
    if origin is Literal:
        return _require(value, value in arguments and isinstance(value, str), path)
    if origin is tuple:
        items = cast("list[Json]", _require(value, isinstance(value, list), path))
        return tuple(_decode(arguments[0], item, f"{path}[{number}]") for number, item in enumerate(items))
    if origin is not None:
        members = cast("dict[str, Json]", _require(value, isinstance(value, dict), path))
        return {key: _decode(arguments[1], member, f"{path}.{key}") for key, member in members.items()}
    if dataclasses.is_dataclass(annotation):
        return _decode_dataclass(cast("type", annotation), value, path)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation(_require(value, value in [member.value for member in annotation], path))
    return _require(value, _is_scalar(value, annotation), path)


def _decode_union(arguments: Sequence[Any], value: Json, path: str) -> object:
    name = value.get(_TYPE) if isinstance(value, dict) else None
    for argument in arguments:
        if not dataclasses.is_dataclass(argument):
            with suppress(ValueError):
                return _decode(argument, value, path)
        elif isinstance(argument, type) and argument.__name__ == name:
            return _decode_dataclass(argument, value, path)
    raise _wrong(path)


def _decode_dataclass(kind: type, value: Json, path: str) -> object:
    members = cast("dict[str, Json]", _require(value, isinstance(value, dict) and value.get(_TYPE) == kind.__name__, path))
    fields = _fields(kind)
    if unknown := members.keys() - fields.keys() - {_TYPE}:
        raise ValueError(f"{path} has the unknown field {min(unknown)!r}")
    given = {name: _decode(fields[name], member, f"{path}.{name}") for name, member in members.items() if name != _TYPE}
    try:
        return kind(**given)
    except TypeError:
        raise ValueError(f"{path} lacks a field of {kind.__name__}") from None


def _is_scalar(value: Json, kind: object) -> bool:
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(value) is kind


def _require(value: Json, holds: bool, path: str) -> Json:
    if not holds:
        raise _wrong(path)
    return value


def _wrong(path: str) -> ValueError:
    return ValueError(f"{path} has a wrong value")


@cache
def _fields(kind: type) -> Mapping[str, Any]:
    """Return the annotations of the fields. The alias ``Json`` is a text; any other text could not be decoded."""
    found: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(kind) if field.init}
    return found


def _is_default(kind: type, name: str, value: object) -> bool:
    default = _defaults(kind).get(name, dataclasses.MISSING)
    return type(value) is type(default) and value == default


@cache
def _defaults(kind: type) -> Mapping[str, object]:
    return {
        field.name: field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }
