"""What a query asks of metadata: which documents may be among its answers.

Values are ordered as null, false, true, numbers, strings (by code points), arrays and objects. 1 and 1.0 are one value, true and
1 are two. A field that a document does not have is null.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from spass.core.errors import InvalidRequest
from spass.core.json import dump, nests_deeper
from spass.core.messages import Json

MAX_FILTER_BYTES: Final = 8192
_MAX_SHOWN_CHARACTERS: Final = 64  # characters of a name that the caller chose
_MAX_DEPTH: Final = 32  # as deep as metadata may be


class ValueType(IntEnum):
    NULL = 0
    BOOLEAN = 1
    NUMBER = 2
    STRING = 3
    OTHER = 4


class MetadataKey(NamedTuple):
    """A JSON value as what it equals and sorts by."""

    kind: ValueType
    number: float = 0
    text: str = ""


NULL: Final = MetadataKey(ValueType.NULL)
_ORDERED: Final = (ValueType.NUMBER, ValueType.STRING)
_CANONICAL: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def metadata_key(value: Json) -> MetadataKey:
    """The key of ``value``: equal for equal JSON values, and for no others."""
    if isinstance(value, str):
        return MetadataKey(ValueType.STRING, text=value)
    if isinstance(value, bool):
        return MetadataKey(ValueType.BOOLEAN, value)
    if isinstance(value, int | float):
        return MetadataKey(ValueType.NUMBER, value)
    return NULL if value is None else MetadataKey(ValueType.OTHER, text=canonical(value))


def canonical(value: Json) -> str:
    """JSON text that is the same for equal values: members in order, whole numbers without a fraction."""
    return _CANONICAL.encode(_normalize(value))


def _normalize(value: Json) -> Json:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: _normalize(inner) for name, inner in value.items()}
    return value if isinstance(value, str) or not isinstance(value, Sequence) else [_normalize(inner) for inner in value]


class KeyRange(NamedTuple):
    """Keys from ``first`` up to but not including ``end``."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """What is asked of one field: all that is not None holds."""

    one_of: frozenset[MetadataKey] | None = None
    unequal: MetadataKey | None = None
    least: MetadataKey | None = None
    most: MetadataKey | None = None

    def matches(self, found: MetadataKey) -> bool:
        return (
            (self.one_of is None or found in self.one_of)
            and found != self.unequal
            and (self.least is None or (_comparable(found, self.least) and found >= self.least))
            and (self.most is None or (_comparable(found, self.most) and found <= self.most))
        )

    def spans(self, keys: Sequence[MetadataKey]) -> Iterator[KeyRange]:
        """Which of ``keys``, which are sorted and different, match: disjoint spans of places, found by bisection."""
        if self.one_of is not None:
            yield from (_range_of_key(one, keys) for one in self.one_of if self.matches(one))
            return
        low, high = self._range(keys)
        if self.unequal is not None:
            without = _range_of_key(self.unequal, keys)
            yield KeyRange(low, max(low, min(high, without.first)))
            low = max(low, without.end)
        yield KeyRange(low, max(low, high))

    def _range(self, keys: Sequence[MetadataKey]) -> KeyRange:
        low, high = 0, len(keys)
        for bound in (self.least, self.most):
            if bound is not None:  # a bound keeps to its own kind on both sides
                of_kind = _range_of_type(bound.kind, keys)
                low, high = max(low, of_kind.first), min(high, of_kind.end)
        if self.least is not None and low < high:
            low = bisect_left(keys, self.least, low, high)
        if self.most is not None and low < high:
            high = bisect_right(keys, self.most, low, high)
        return KeyRange(low, high)


def _range_of_type(kind: ValueType, keys: Sequence[MetadataKey]) -> KeyRange:
    """Where the keys of a ``kind`` that has an order stand; mostly a field's values are all of one kind."""
    if kind not in _ORDERED or not keys:
        return KeyRange(0, 0)
    first = 0 if keys[0].kind == kind else bisect_left(keys, MetadataKey(kind, -math.inf))
    end = len(keys) if keys[-1].kind == kind else bisect_left(keys, MetadataKey(ValueType(kind + 1), -math.inf))
    return KeyRange(first, end)


def _comparable(found: MetadataKey, bound: MetadataKey) -> bool:
    return found.kind == bound.kind and bound.kind in _ORDERED


def _range_of_key(one: MetadataKey, keys: Sequence[MetadataKey]) -> KeyRange:
    place = bisect_left(keys, one)
    return KeyRange(place, place + int(place < len(keys) and keys[place] == one))


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions by field; a document matches if it meets all of them."""

    fields: Mapping[str, FilterCondition]

    def matches(self, metadata: Mapping[str, Json]) -> bool:
        return all(condition.matches(metadata_key(metadata.get(field))) for field, condition in self.fields.items())


def parse_filter(raw: Mapping[str, Json]) -> Filter:
    """The filter that ``raw`` writes: equality by a plain value, or an object of ``$in``, ``$gte``, ``$lte``, ``$ne``.

    Raises:
        InvalidRequest: an unknown operator, one where a field should stand, no operator at all, an ``$in`` without a list, or
            more than 8192 bytes.
    """
    _check_size(raw)
    for field in raw:
        if field.startswith("$"):
            raise _invalid_filter(f"names {field[:_MAX_SHOWN_CHARACTERS]!r} where a field of the metadata should stand")
    return Filter({field: _condition(field, asked) for field, asked in raw.items()})


def _check_size(raw: Mapping[str, Json]) -> None:
    if nests_deeper(raw, _MAX_DEPTH + 1):  # the filter and the value's operator lie around a value
        raise _invalid_filter(f"is nested deeper than {_MAX_DEPTH} levels")
    try:
        size = len(dump(raw).encode())
    except ValueError:
        raise _invalid_filter("is not JSON") from None
    if size > MAX_FILTER_BYTES:
        raise _invalid_filter(f"is {size} bytes long; {MAX_FILTER_BYTES} are allowed")


def _condition(field: str, asked: Json) -> FilterCondition:
    if not isinstance(asked, Mapping) or (asked and not any(name.startswith("$") for name in asked)):
        return FilterCondition(one_of=frozenset({metadata_key(asked)}))
    unknown = asked.keys() - {"$in", "$gte", "$lte", "$ne"}
    if unknown or not asked:
        name = repr(min(unknown)) if unknown else "an empty object"
        raise _invalid_filter(f"has {name} for {field!r}; it takes a value, or an object of $in, $gte, $lte and $ne")
    members = asked.get("$in")
    if "$in" in asked and (isinstance(members, str) or not isinstance(members, Sequence)):
        raise _invalid_filter(f"has an $in without a list for {field!r}")
    return FilterCondition(
        one_of=frozenset(map(metadata_key, members)) if isinstance(members, Sequence) else None,
        unequal=metadata_key(asked["$ne"]) if "$ne" in asked else None,
        least=metadata_key(asked["$gte"]) if "$gte" in asked else None,
        most=metadata_key(asked["$lte"]) if "$lte" in asked else None,
    )


def _invalid_filter(what: str) -> InvalidRequest:
    return InvalidRequest(f"The filter {what}.", param="filter")
