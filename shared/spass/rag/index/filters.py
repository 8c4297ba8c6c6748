"""Filters: conditions on the metadata of the documents that a query may find.

Values are ordered as null, false, true, numbers, strings (by code points), arrays and objects. 1 and 1.0 are equal, true and 1
are not. A field that a document does not have is null.
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
_MAX_SHOWN_CHARACTERS: Final = 64  # of a name that the caller chose
_MAX_DEPTH: Final = 32  # as deep as metadata may be


class ValueType(IntEnum):
    NULL = 0
    BOOLEAN = 1
    NUMBER = 2
    STRING = 3
    OTHER = 4


class MetadataKey(NamedTuple):
    """A comparable and sortable form of a JSON value."""

    type: ValueType
    number: float = 0
    text: str = ""


NULL: Final = MetadataKey(ValueType.NULL)
_ORDERED: Final = (ValueType.NUMBER, ValueType.STRING)
_CANONICAL: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def metadata_key(value: Json) -> MetadataKey:
    """Return the key of ``value``. Keys are equal if and only if the JSON values are equal."""
    if isinstance(value, str):
        return MetadataKey(ValueType.STRING, text=value)
    if isinstance(value, bool):
        return MetadataKey(ValueType.BOOLEAN, value)
    if isinstance(value, int | float):
        return MetadataKey(ValueType.NUMBER, value)
    return NULL if value is None else MetadataKey(ValueType.OTHER, text=normalized_json(value))


def normalized_json(value: Json) -> str:
    """Return JSON that is the same for equal values: sorted members, and whole numbers without a fraction."""
    return _CANONICAL.encode(_normalize(value))


def _normalize(value: Json) -> Json:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: _normalize(inner) for name, inner in value.items()}
    return value if isinstance(value, str) or not isinstance(value, Sequence) else [_normalize(inner) for inner in value]


class KeyRange(NamedTuple):
    """The keys from rank ``first`` up to but not including rank ``end``."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """A condition on one field. All parts that are not None must hold."""

    one_of: frozenset[MetadataKey] | None = None
    not_equal: MetadataKey | None = None
    minimum: MetadataKey | None = None
    maximum: MetadataKey | None = None

    def matches(self, key: MetadataKey) -> bool:
        return (
            (self.one_of is None or key in self.one_of)
            and key != self.not_equal
            and (self.minimum is None or (_comparable(key, self.minimum) and key >= self.minimum))
            and (self.maximum is None or (_comparable(key, self.maximum) and key <= self.maximum))
        )

    def key_ranges(self, keys: Sequence[MetadataKey]) -> Iterator[KeyRange]:
        """Yield disjoint ranges of the ``keys`` that match. ``keys`` are sorted and distinct, and are bisected."""
        if self.one_of is not None:
            yield from (_range_of_key(key, keys) for key in self.one_of if self.matches(key))
            return
        low, high = self._range(keys)
        if self.not_equal is not None:
            excluded = _range_of_key(self.not_equal, keys)
            yield KeyRange(low, max(low, min(high, excluded.first)))
            low = max(low, excluded.end)
        yield KeyRange(low, max(low, high))

    def _range(self, keys: Sequence[MetadataKey]) -> KeyRange:
        low, high = 0, len(keys)
        for bound in (self.minimum, self.maximum):
            if bound is not None:  # a bound matches only values of its own type
                of_type = _range_of_type(bound.type, keys)
                low, high = max(low, of_type.first), min(high, of_type.end)
        if self.minimum is not None and low < high:
            low = bisect_left(keys, self.minimum, low, high)
        if self.maximum is not None and low < high:
            high = bisect_right(keys, self.maximum, low, high)
        return KeyRange(low, high)


def _range_of_type(type_: ValueType, keys: Sequence[MetadataKey]) -> KeyRange:
    """Return the range of the keys that have this type. It is empty for a type without an order."""
    if type_ not in _ORDERED or not keys:
        return KeyRange(0, 0)
    # Usually all values of a field have one type: compare the ends first.
    first = 0 if keys[0].type == type_ else bisect_left(keys, MetadataKey(type_, -math.inf))
    end = len(keys) if keys[-1].type == type_ else bisect_left(keys, MetadataKey(ValueType(type_ + 1), -math.inf))
    return KeyRange(first, end)


def _comparable(key: MetadataKey, bound: MetadataKey) -> bool:
    return key.type == bound.type and bound.type in _ORDERED


def _range_of_key(key: MetadataKey, keys: Sequence[MetadataKey]) -> KeyRange:
    rank = bisect_left(keys, key)
    return KeyRange(rank, rank + int(rank < len(keys) and keys[rank] == key))


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions by field. A document matches if it meets all of them."""

    fields: Mapping[str, FilterCondition]

    def matches(self, metadata: Mapping[str, Json]) -> bool:
        return all(condition.matches(metadata_key(metadata.get(field))) for field, condition in self.fields.items())


def parse_filter(raw: Mapping[str, Json]) -> Filter:
    """Parse a filter: each field has a value that it must equal, or an object of ``$in``, ``$gte``, ``$lte`` and ``$ne``.

    Raises:
        InvalidRequest: an operator is unknown or stands where a field should, a condition is empty, ``$in`` is not a list,
            or the filter has more than 8192 bytes or more than 32 levels.
    """
    _check_size(raw)
    for field in raw:
        if field.startswith("$"):
            raise _invalid_filter(f"names {field[:_MAX_SHOWN_CHARACTERS]!r} where a field of the metadata should stand")
    return Filter({field: _parse_condition(field, condition) for field, condition in raw.items()})


def _check_size(raw: Mapping[str, Json]) -> None:
    if nests_deeper(raw, _MAX_DEPTH + 1):  # the filter and an operator add two levels
        raise _invalid_filter(f"is nested deeper than {_MAX_DEPTH} levels")
    try:
        size = len(dump(raw).encode())
    except ValueError:
        raise _invalid_filter("is not JSON") from None
    if size > MAX_FILTER_BYTES:
        raise _invalid_filter(f"has {size} bytes; at most {MAX_FILTER_BYTES} are allowed")


def _parse_condition(field: str, raw: Json) -> FilterCondition:
    if not isinstance(raw, Mapping) or (raw and not any(name.startswith("$") for name in raw)):
        return FilterCondition(one_of=frozenset({metadata_key(raw)}))
    unknown = raw.keys() - {"$in", "$gte", "$lte", "$ne"}
    if unknown or not raw:
        name = repr(min(unknown)) if unknown else "an empty object"
        raise _invalid_filter(f"has {name} for {field!r}; it takes a value, or an object of $in, $gte, $lte and $ne")
    members = raw.get("$in")
    if "$in" in raw and (isinstance(members, str) or not isinstance(members, Sequence)):
        raise _invalid_filter(f"has an $in without a list for {field!r}")
    return FilterCondition(
        one_of=frozenset(map(metadata_key, members)) if isinstance(members, Sequence) else None,
        not_equal=metadata_key(raw["$ne"]) if "$ne" in raw else None,
        minimum=metadata_key(raw["$gte"]) if "$gte" in raw else None,
        maximum=metadata_key(raw["$lte"]) if "$lte" in raw else None,
    )


def _invalid_filter(problem: str) -> InvalidRequest:
    return InvalidRequest(f"The filter {problem}.", param="filter")
