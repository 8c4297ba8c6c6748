"""The values of items, and writes to the table with their conditions, as data.

``aws.dynamodb`` renders them as DynamoDB's expressions; a table in memory evaluates them directly. A path is the name of an
attribute, or, with dots, of an entry of a map: ``hold.owner``. No attribute's own name contains a dot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, TypeAlias

from spass.store.keys import Key

Value: TypeAlias = "None | bool | int | Decimal | str | bytes | frozenset[str] | Sequence[Value] | Mapping[str, Value]"
"""The value of an attribute. Store a fraction as a Decimal only if an ``Update`` adds to it, otherwise as text. A whole Decimal
is read back as an int. DynamoDB does not store empty sets."""
Item: TypeAlias = dict[str, Value]
"""A stored item, ``pk`` and ``sk`` included."""


class Condition:
    """A condition on the stored item. A write takes effect only if it holds. ``a & b`` needs both, ``a | b`` at least one."""

    def __and__(self, other: "Condition") -> "AllOf":
        return AllOf((self, other))

    def __or__(self, other: "Condition") -> "AnyOf":
        return AnyOf((self, other))


@dataclass(frozen=True, slots=True)
class _Presence(Condition):
    path: str


class Exists(_Presence):
    """The attribute exists."""


class Absent(_Presence):
    """The attribute does not exist."""


@dataclass(frozen=True, slots=True)
class _Comparison(Condition):
    """A comparison is false for an attribute that does not exist, except ``Lacks``."""

    path: str
    value: Value


class Equals(_Comparison):
    """The attribute equals ``value``."""


class OneOf(_Comparison):
    """The attribute equals one of the list ``value``."""


class AtMost(_Comparison):
    """The attribute has the type of ``value`` (a number or text) and is at most ``value``."""


class Contains(_Comparison):
    """The attribute is a set that contains the text ``value``."""


class Lacks(_Comparison):
    """The attribute is not a set that contains the text ``value``."""


class HasSize(_Comparison):
    """The attribute is a set with ``value`` members."""


@dataclass(frozen=True, slots=True)
class _Combination(Condition):
    conditions: tuple[Condition, ...]


class AllOf(_Combination):
    """All ``conditions`` hold."""


class AnyOf(_Combination):
    """At least one of ``conditions`` holds."""


ITEM_EXISTS: Final = Exists("pk")


ITEM_ABSENT: Final = Absent("pk")
"""The key has no item. An expired item that DynamoDB has not removed yet still exists."""


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the whole item."""

    key: Key
    attributes: Mapping[str, Value]
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Change an item, which is created if it is absent. Paths must not repeat or contain each other.

    Attributes:
        set: the paths that get a value.
        default: the paths that get a value only if they are absent.
        add: the numbers that are increased, or the members that are added to sets of text. An absent attribute counts as 0 or
            as empty; an absent entry of a map is an error.
        discard: the members that are removed from sets. Removing the last member removes the attribute.
        remove: the paths that are removed.
    """

    key: Key
    set: Mapping[str, Value] = field(default_factory=dict)
    default: Mapping[str, Value] = field(default_factory=dict)
    add: Mapping[str, Value] = field(default_factory=dict)
    discard: Mapping[str, frozenset[str]] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the item, if there is one."""

    key: Key
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Only check a condition, as part of a transaction."""

    key: Key
    when: Condition


Write: TypeAlias = Put | Update | Delete | Check
