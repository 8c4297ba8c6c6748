"""Conditions and updates, evaluated on items as DynamoDB does it: no I/O."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeGuard, cast

from spass.aws.attributes import Item, Value
from spass.aws.writes import (
    Absent,
    AllOf,
    AnyOf,
    AtMost,
    Condition,
    Contains,
    Equals,
    Exists,
    HasSize,
    Lacks,
    OneOf,
    Update,
)

_MISSING: Final = object()


class InvalidUpdate(Exception):
    """An update that does not fit the item it meets."""


def holds(condition: Condition | None, item: Item | None) -> bool:
    """Return whether ``condition`` holds of ``item``; None stands for an absent item."""
    found = item or {}
    match condition:
        case None:
            return True
        case Exists(path):
            return _at(path, found) is not _MISSING
        case Absent(path):
            return _at(path, found) is _MISSING
        case Equals(path, value):
            return _equal(_at(path, found), value)
        case OneOf(path, list(values) | tuple(values)):
            return any(_equal(_at(path, found), value) for value in values)
        case AtMost(path, value):
            return _at_most(_at(path, found), value)
        case Contains(path, value):
            return value in _members(_at(path, found))
        case Lacks(path, value):
            return value not in _members(_at(path, found))
        case HasSize(path, value):
            held = _at(path, found)
            return isinstance(held, frozenset) and len(held) == value
        case AllOf(conditions):
            return all(holds(inner, item) for inner in conditions)
        case AnyOf(conditions):
            return any(holds(inner, item) for inner in conditions)
    raise TypeError(f"not a condition: {condition!r}")


def apply(update: Update, item: Item | None) -> Item:
    """Return the item after ``update``. The one before stays as it is, down to its maps.

    Raises:
        InvalidUpdate: the update does not fit the item.
    """
    before: Item = item if item is not None else {"pk": update.key.pk, "sk": update.key.sk}
    after = dict(before)
    written = [*update.set, *update.default, *update.add, *update.discard, *update.remove]
    assert written, f"an update of nothing: {update}"
    ordered = sorted(f"{path}." for path in written)
    assert not any(later.startswith(path) for path, later in pairwise(ordered)), f"two paths overlap: {update}"
    assert not {"pk", "sk"} & {*written}, "an update may not change a key"
    for path, value in update.set.items():
        _write(path, after, stored(value))
    for path, value in update.default.items():
        held = _at(path, before)
        _write(path, after, stored(value) if held is _MISSING else cast(Value, held))
    for path, value in update.add.items():
        held = _at(path, before)
        if held is _MISSING and "." in path:
            raise InvalidUpdate("The provided expression refers to an attribute that does not exist in the item")
        _write(path, after, _sum(held, value))
    for name, members in update.discard.items():
        _discard(name, members, after)
    for path in update.remove:
        holder, name = _holder(path, after)
        holder.pop(name, None)
    return after


def stored(value: Value) -> Value:
    """Return ``value`` as it comes back from the table, in containers of its own."""
    match value:
        case None | bool() | int() | bytes() | frozenset():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else value
        case str():
            return str(value)
        case Mapping():
            return {name: stored(inner) for name, inner in value.items()}
        case _:
            return [stored(inner) for inner in value]


def _at(path: str, item: Mapping[str, Value]) -> object:
    held: object = item
    for name in path.split("."):
        if not isinstance(held, Mapping):
            return _MISSING
        held = held.get(name, _MISSING)
    return held


def _holder(path: str, item: Item) -> tuple[Item, str]:
    """Return the map that holds the end of ``path``, and its name there. The map and what it lies in are copied."""
    *above, name = path.split(".")
    for part in above:
        held = item.get(part)
        if not isinstance(held, Mapping):
            raise InvalidUpdate("The document path provided in the update expression is invalid for update")
        inner: Item = dict(held)
        item[part] = inner
        item = inner
    return item, name


def _write(path: str, item: Item, value: Value) -> None:
    holder, name = _holder(path, item)
    holder[name] = value


def _sum(held: object, more: Value) -> Value:
    if isinstance(more, frozenset):
        if held is not _MISSING and not isinstance(held, frozenset):
            raise InvalidUpdate("An operand in the update expression has an incorrect data type")
        return more | _members(held)
    if not _number(more) or not (held is _MISSING or _number(held)):
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    return stored(more if held is _MISSING else cast(int, held) + cast(int, more))


def _discard(name: str, members: frozenset[str], item: Item) -> None:
    held = item.pop(name, frozenset())
    if not isinstance(held, frozenset):
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    if left := held - members:
        item[name] = left


def _members(held: object) -> frozenset[Any]:
    return held if isinstance(held, frozenset) else frozenset()


def _number(value: object) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if _listed(one) and _listed(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _listed(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _at_most(held: object, most: Value) -> bool:
    if _number(held) and _number(most):
        return held <= most
    for kind in (str, bytes):
        if isinstance(held, kind) and isinstance(most, kind):
            return held <= most  # type: ignore[operator]
    return False
