"""Frozen dataclasses as JSON, or as attributes of an item, and back. Each field is a member of the same name.

``decode`` checks types and required fields. There are two forms:

- Messages of another process, which is not trusted. Each dataclass has its name as ``type``, fields with their default are left
  out, and an unknown field is refused.
- Stored records. Fields that are None are left out, so that conditions can test whether they exist. An unknown field is ignored,
  because a later release may have stored it.

The decoder of a dataclass is compiled once. Annotations are types, not texts; ``Json`` is the one text.
"""

import base64
import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import count, repeat
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NewType,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from spass.core.cost import decimal_text
from spass.core.errors import InternalError, internal_error
from spass.core.json import dump
from spass.core.messages import Json

Decoder: TypeAlias = Callable[[Any], object]
Encoder: TypeAlias = Callable[[Any], Any]

_TYPE: Final = "type"
_MISSING: Final = dataclasses.MISSING
_UNCHANGED: Final[Encoder] = lambda value: value  # noqa: E731 (compared by identity)


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


R = TypeVar("R", bound=Dataclass)
M = TypeVar("M")


@dataclasses.dataclass(frozen=True, slots=True)
class AsJson:
    """``Annotated[T, AsJson()]``: the field is stored as JSON text, because it may hold fractions, which attributes cannot."""


@dataclasses.dataclass(frozen=True, slots=True)
class AsList:
    """``Annotated[D, AsList()]``: the dataclass is stored as the list of its members. The last ``optional`` are left out if they
    are all empty."""

    optional: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StoredAs:
    """``Annotated[T, StoredAs("name")]``: the name of the stored member."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Required:
    """``Annotated[T, Required()] = default``: only code may leave the field out, not a stored record."""


class WrongValue(ValueError):
    """A value has another type than its field, or a required field is missing. ``path`` leads to it from the outermost value."""

    def __init__(self, problem: str = "has a wrong value", path: str = "") -> None:
        super().__init__(f"{path} {problem}")
        self.problem = problem
        self.path = path

    def inside(self, name: str) -> "WrongValue":
        """Return the error of the value that contains this one under ``name``."""
        return WrongValue(self.problem, name + self.path)


def encode_message(value: object) -> Json:
    """Return a dataclass, or a tuple of them, as JSON for another process."""
    if _is_dataclass(type(value)):
        kind: type = type(value)
        members = {name: getattr(value, name) for name in _annotations(kind)}
        given = {name: encode_message(member) for name, member in members.items() if not _is_default(kind, name, member)}
        return {_TYPE: kind.__name__, **given}
    if isinstance(value, Enum):
        return cast("Json", value.value)
    if isinstance(value, Mapping):
        return {key: encode_message(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode_message(member) for member in value]
    return cast("Json", value)


def decode_message(annotation: Any, value: Json, name: str) -> Any:  # noqa: ANN401 (an annotation has no type of its own)
    """Return the value of the type ``annotation`` that another process sent, or raise a ``ValueError`` that calls it ``name``."""
    try:
        return _compile(annotation, is_message=True)(value)
    except WrongValue as error:
        raise error.inside(name) from None


def encode_record(record: Dataclass, *, without: Collection[str] = (), keep_none: bool = False) -> dict[str, Any]:
    """Return the members of ``record`` as they are stored, except ``without``, and without those that are None, unless
    ``keep_none``."""
    found: dict[str, Any] = {}
    for name, stored, encode in _encoders(type(record)):
        if name in without:
            continue
        value = getattr(record, name)
        if value is not None:
            found[stored] = encode(value)
        elif keep_none:
            found[stored] = None
    return found


def decode_record(kind: type[R], stored: Mapping[str, Any], /, **given: object) -> R:
    """Return the record that ``stored`` holds, or raise ``WrongValue``. ``given`` are fields that it does not hold, such as those
    in the key of an item."""
    values: dict[str, Any] = given
    member = ""
    try:
        for name, member, decode, absent in _decoders(kind):
            if name in values:
                continue
            if member in stored:
                values[name] = decode(stored[member])
            elif absent is _MISSING:
                raise WrongValue("is missing")
            else:
                values[name] = absent
    except WrongValue as error:
        raise error.inside(f".{member}") from None
    return kind(**values)


def broken_record(name: str, error: WrongValue) -> InternalError:
    """Return the error that clients see instead of ``error``. The log tells the ``name`` of the record and the field."""
    return internal_error(InternalError(f"The stored {name}{error.path} {error.problem}."))


def _compile(annotation: Any, *, is_message: bool) -> Decoder:  # noqa: ANN401 (an annotation has no type of its own)
    if _is_json(annotation):
        return _UNCHANGED
    if isinstance(annotation, NewType):
        return _compile(annotation.__supertype__, is_message=is_message)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return _plain_decoder(annotation, is_message=is_message)
    if origin in (Union, UnionType):
        return _union_decoder(arguments, is_message=is_message)
    if origin is Literal:
        return _choice_decoder({choice: choice for choice in arguments})
    if mark := _mark(annotation, AsList):
        return _list_decoder(arguments[0], mark.optional)
    is_mapping = origin not in (Annotated, tuple)
    inner = _compile(arguments[1 if is_mapping else 0], is_message=is_message)
    if origin is Annotated:
        return _json_decoder(inner) if _mark(annotation, AsJson) else inner
    return _mapping_decoder(inner) if is_mapping else _tuple_decoder(inner)


def _plain_decoder(kind: type, *, is_message: bool) -> Decoder:
    if _is_dataclass(kind):
        return _message_decoder(kind) if is_message else _record_decoder(kind)
    if issubclass(kind, Enum):
        return _choice_decoder({member.value: member for member in kind})
    return {float: _float, Decimal: _decimal, bytes: _bytes}.get(kind) or _scalar_decoder(kind)


def _scalar_decoder(kind: type) -> Decoder:
    def decode(value: object) -> object:
        if type(value) is kind or (kind is str and isinstance(value, str)):
            return value
        raise WrongValue

    return decode


def _float(value: object) -> object:
    if isinstance(value, float | int | Decimal) and not isinstance(value, bool):
        return float(value) if isinstance(value, Decimal) else value
    raise WrongValue


def _decimal(value: object) -> object:
    try:
        if isinstance(value, str):
            return Decimal(value)
    except ArithmeticError:
        pass
    raise WrongValue


def _bytes(value: object) -> object:
    try:  # JSON has bytes in base64
        return value if isinstance(value, bytes) else base64.b64decode(cast("str", value), validate=True)
    except (TypeError, ValueError):
        raise WrongValue from None


def _choice_decoder(choices: Mapping[Any, object]) -> Decoder:
    def decode(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise WrongValue

    return decode


def _json_decoder(inner: Decoder) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, str):
            raise WrongValue
        try:
            content = json.loads(value)
        except ValueError:
            raise WrongValue from None
        return inner(content)

    return decode


def _union_decoder(arguments: Sequence[Any], *, is_message: bool) -> Decoder:
    by_name = {kind.__name__: kind for kind in arguments if is_message and _is_dataclass(kind)}
    others = [
        _compile(argument, is_message=is_message) for argument in arguments if argument not in (NoneType, *by_name.values())
    ]
    is_optional = NoneType in arguments

    def decode(value: Any) -> object:  # noqa: ANN401 (any value)
        if value is None and is_optional:
            return None
        if by_name and isinstance(value, dict) and isinstance(name := value.get(_TYPE), str) and name in by_name:
            return _message_decoder(by_name[name])(value)
        for other in others[:-1]:
            try:
                return other(value)
            except WrongValue:
                pass
        if not others:
            raise WrongValue
        return others[-1](value)

    return decode


def _tuple_decoder(member: Decoder) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, list | tuple):
            raise WrongValue
        return tuple(_each(count(), repeat(member), value))

    return decode


def _list_decoder(annotation: Any, optional: int) -> Decoder:  # noqa: ANN401 (an annotation has no type of its own)
    kind = _dataclass_in(annotation)
    decoders = [_compile(member, is_message=False) for member in _annotations(kind).values()]
    may_be_none = _may_be_none(annotation)

    def decode(value: object) -> object:
        if value is None and may_be_none:
            return None
        if not isinstance(value, list | tuple) or not len(decoders) - optional <= len(value) <= len(decoders):
            raise WrongValue
        return kind(*_each(count(), decoders, value))

    return decode


def _mapping_decoder(member: Decoder) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, dict):
            raise WrongValue
        return dict(zip(value, _each(value, repeat(member), value.values(), ".{}"), strict=True))

    return decode


def _each(names: Iterable[object], decoders: Iterable[Decoder], values: Iterable[Any], path: str = "[{}]") -> list[object]:
    found = []
    for name, decode, value in zip(names, decoders, values, strict=False):
        try:
            found.append(decode(value))
        except WrongValue as error:
            raise error.inside(path.format(name)) from None
    return found


def _record_decoder(kind: type) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, Mapping):
            raise WrongValue
        return decode_record(kind, value)

    return decode


@cache
def _message_decoder(kind: type) -> Decoder:
    decoders = {name: _compile(annotation, is_message=True) for name, annotation in _annotations(kind).items()}

    def decode(value: object) -> object:
        if not isinstance(value, dict) or value.get(_TYPE) != kind.__name__:
            raise WrongValue
        if unknown := value.keys() - decoders.keys() - {_TYPE}:
            raise WrongValue(f"has the unknown field {min(unknown)!r}")
        given = {name: member for name, member in value.items() if name != _TYPE}
        members = _each(given, map(decoders.__getitem__, given), given.values(), ".{}")
        try:
            return kind(**dict(zip(given, members, strict=True)))
        except TypeError:
            raise WrongValue(f"lacks a field of {kind.__name__}") from None

    return decode


@cache
def _decoders(kind: type) -> Sequence[tuple[str, str, Decoder, object]]:
    """Return for each field its name, the name of the stored member, its decoder, and its value if the member is absent."""
    return [
        (
            name,
            _stored_name(name, annotation),
            _compile(annotation, is_message=False),
            _absent_value(annotation, default),
        )
        for (name, annotation), default in zip(_annotations(kind).items(), _defaults(kind).values(), strict=True)
    ]


def _absent_value(annotation: Any, default: object) -> object:  # noqa: ANN401 (an annotation has no type of its own)
    if _mark(annotation, Required):
        return _MISSING
    return None if default is _MISSING and _may_be_none(annotation) else default


def _may_be_none(annotation: Any) -> bool:  # noqa: ANN401 (an annotation has no type of its own)
    if get_origin(annotation) is Annotated:
        return _may_be_none(get_args(annotation)[0])
    return _is_json(annotation) or NoneType in get_args(annotation)


@cache
def _encoders(kind: type) -> Sequence[tuple[str, str, Encoder]]:
    return [(name, _stored_name(name, annotation), _encoder(annotation)) for name, annotation in _annotations(kind).items()]


def _encoder(annotation: Any) -> Encoder:  # noqa: ANN401 (an annotation has no type of its own)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if mark := _mark(annotation, AsList):
        return _list_encoder(_dataclass_in(arguments[0]), mark.optional)
    if origin is Annotated:
        inner = _encoder(arguments[0])
        return (lambda value: dump(inner(value))) if _mark(annotation, AsJson) else inner
    if origin in (Union, UnionType):
        encoders = {_encoder(argument) for argument in arguments if argument is not NoneType}
        return encoders.pop() if len(encoders) == 1 else _UNCHANGED
    if origin is tuple and (member := _encoder(arguments[0])) is not _UNCHANGED:
        return lambda value: [member(one) for one in value]
    if annotation is Decimal:
        return decimal_text
    return encode_record if _is_dataclass(annotation) else _UNCHANGED


def _list_encoder(kind: type, optional: int) -> Encoder:
    encoders = _encoders(kind)

    def encode(record: object) -> list[Any]:
        members = [getattr(record, name) for name, _, _ in encoders]
        if optional and not any(members[-optional:]):
            del members[-optional:]
        pairs = zip(members, encoders, strict=False)
        return [None if member is None else encode_member(member) for member, (_, _, encode_member) in pairs]

    return encode


def _dataclass_in(annotation: Any) -> type:  # noqa: ANN401 (an annotation has no type of its own)
    return next(kind for kind in (annotation, *get_args(annotation)) if _is_dataclass(kind))


def _stored_name(name: str, annotation: Any) -> str:  # noqa: ANN401 (an annotation has no type of its own)
    mark = _mark(annotation, StoredAs)
    return name if mark is None else mark.name


def _mark(annotation: Any, kind: type[M]) -> M | None:  # noqa: ANN401 (an annotation has no type of its own)
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _is_json(annotation: object) -> bool:
    return Json in (annotation, getattr(annotation, "__forward_arg__", None))


def _is_dataclass(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@cache
def _annotations(kind: type) -> Mapping[str, Any]:
    return {field.name: field.type for field in dataclasses.fields(kind) if field.init}


@cache
def _defaults(kind: type) -> Mapping[str, object]:
    """Return the default of each field, or ``MISSING``. A default of a factory is shared, so it must not change."""
    fields = [field for field in dataclasses.fields(kind) if field.init]
    made = {field.name: field.default_factory() for field in fields if field.default_factory is not _MISSING}
    return {field.name: made.get(field.name, field.default) for field in fields}


def _is_default(kind: type, name: str, value: object) -> bool:
    default = _defaults(kind)[name]
    return type(value) is type(default) and value == default
