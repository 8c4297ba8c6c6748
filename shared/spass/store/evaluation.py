"""Evaluate conditions and updates on items as DynamoDB does, without I/O: for tables in memory."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeGuard, cast

from spass.store.writes import (
    Absent,
    AllOf,
    AnyOf,
    AtMost,
    Condition,
    Contains,
    Equals,
    Exists,
    HasSize,
    Item,
    Lacks,
    OneOf,
    Update,
    Value,
)

_MISSING: Final = object()


class InvalidUpdate(Exception):
    """DynamoDB would reject the update for this item, for example because it adds a number to a text."""


def holds(condition: Condition | None, item: Item | None) -> bool:
    """Return whether ``condition`` holds for ``item``; None is an absent item."""
    attributes = item or {}
    match condition:
        case None:
            return True
        case Exists(path):
            return _value_at(path, attributes) is not _MISSING
        case Absent(path):
            return _value_at(path, attributes) is _MISSING
        case Equals(path, value):
            return _equal(_value_at(path, attributes), value)
        case OneOf(path, list(values) | tuple(values)):
            return any(_equal(_value_at(path, attributes), value) for value in values)
        case AtMost(path, value):
            return _at_most(_value_at(path, attributes), value)
        case Contains(path, value):
            return value in _members(_value_at(path, attributes))
        case Lacks(path, value):
            return value not in _members(_value_at(path, attributes))
        case HasSize(path, value):
            current = _value_at(path, attributes)
            return isinstance(current, frozenset) and len(current) == value
        case AllOf(conditions):
            return all(holds(inner, item) for inner in conditions)
        case AnyOf(conditions):
            return any(holds(inner, item) for inner in conditions)
    raise TypeError(f"not a condition: {condition!r}")


def apply_update(update: Update, item: Item | None) -> Item:
    """Return the item after ``update``; None is an absent item. Neither ``item`` nor a map in it is changed. Raise
    ``InvalidUpdate`` if DynamoDB would reject the update for this item."""
    before: Item = item if item is not None else {"pk": update.key.pk, "sk": update.key.sk}
    after = dict(before)
    paths = [*update.set, *update.default, *update.add, *update.discard, *update.remove]
    _check_paths(paths)
    for path, value in update.set.items():
        _set(path, after, copy_as_stored(value))
    for path, value in update.default.items():
        current = _value_at(path, before)
        _set(path, after, copy_as_stored(value) if current is _MISSING else cast(Value, current))
    for path, value in update.add.items():
        current = _value_at(path, before)
        if current is _MISSING and "." in path:
            raise InvalidUpdate("The provided expression refers to an attribute that does not exist in the item")
        _set(path, after, _add(current, value))
    for name, members in update.discard.items():
        _discard(name, members, after)
    for path in update.remove:
        parent, name = _parent_map(path, after)
        parent.pop(name, None)
    return after


def _check_paths(paths: Sequence[str]) -> None:
    """Raise ValueError for an update that DynamoDB would reject for every item."""
    sorted_paths = sorted(f"{path}." for path in paths)
    if not paths:
        raise ValueError("the update changes nothing")
    if any(later.startswith(path) for path, later in pairwise(sorted_paths)):
        raise ValueError(f"two paths of the update overlap: {', '.join(paths)}")
    if {"pk", "sk"} & {*paths}:
        raise ValueError("an update may not change a key")


def copy_as_stored(value: Value) -> Value:
    """Return ``value`` as DynamoDB would return it: a whole Decimal is an int, and maps and lists are copied."""
    match value:
        case None | bool() | int() | bytes() | frozenset():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else value
        case str():
            return str(value)
        case Mapping():
            return {name: copy_as_stored(inner) for name, inner in value.items()}
        case _:
            return [copy_as_stored(inner) for inner in value]


def _value_at(path: str, item: Mapping[str, Value]) -> object:
    current: object = item
    for name in path.split("."):
        if not isinstance(current, Mapping):
            return _MISSING
        current = current.get(name, _MISSING)
    return current


def _parent_map(path: str, item: Item) -> tuple[Item, str]:
    """Return the map that contains the last name of ``path``, and that name. Replace every map on the way by a copy first."""
    *parents, name = path.split(".")
    for part in parents:
        current = item.get(part)
        if not isinstance(current, Mapping):
            raise InvalidUpdate("The document path provided in the update expression is invalid for update")
        inner: Item = dict(current)
        item[part] = inner
        item = inner
    return item, name


def _set(path: str, item: Item, value: Value) -> None:
    parent, name = _parent_map(path, item)
    parent[name] = value


def _add(current: object, addend: Value) -> Value:
    if isinstance(addend, frozenset):
        if current is not _MISSING and not isinstance(current, frozenset):
            raise InvalidUpdate("An operand in the update expression has an incorrect data type")
        return addend | _members(current)
    if not _is_number(addend) or not (current is _MISSING or _is_number(current)):
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    return copy_as_stored(addend if current is _MISSING else cast(int, current) + cast(int, addend))


def _discard(name: str, members: frozenset[str], item: Item) -> None:
    current = item.pop(name, frozenset())
    if not isinstance(current, frozenset):
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    if remaining := current - members:
        item[name] = remaining


def _members(current: object) -> frozenset[Any]:
    return current if isinstance(current, frozenset) else frozenset()


def _is_number(value: object) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if _is_list(one) and _is_list(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _at_most(current: object, bound: Value) -> bool:
    if _is_number(current) and _is_number(bound):
        return current <= bound
    for kind in (str, bytes):
        if isinstance(current, kind) and isinstance(bound, kind):
            return current <= bound  # type: ignore[operator]
    return False
