"""DynamoDB's expressions, as far as our code writes them, made into functions once and kept. Whatever else comes is refused.

https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.OperatorsAndFunctions.html
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeAlias

Attribute: TypeAlias = Mapping[str, Any]
"""A value as DynamoDB writes it: ``{"S": "text"}``."""
Attributes: TypeAlias = Mapping[str, Attribute]
Path: TypeAlias = tuple[str, ...]
Read: TypeAlias = Callable[[Attributes, Attributes], Attribute | None]
"""From an item and an expression's values to an operand."""
Holds: TypeAlias = Callable[[Attributes, Attributes], bool]

_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[#:][A-Za-z0-9_]+|<=|>=|[=<>(),.+-])")
_CLAUSES: Final = ("SET", "REMOVE", "ADD", "DELETE")
_ORDERED: Final = ("S", "N", "B")


class InvalidUpdate(Exception):
    """An update that does not fit the item it meets."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``names`` and ``values`` are the placeholders it uses."""

    holds: Holds
    names: frozenset[str]
    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class Update:
    """``sets``, ``adds``, ``deletes`` and ``removed`` are paths and what becomes of them, none of which lies in another."""

    sets: Sequence[tuple[Path, Read]]
    adds: Sequence[tuple[Path, Read]]
    deletes: Sequence[tuple[Path, Read]]
    removed: Sequence[Path]
    names: frozenset[str]
    values: frozenset[str]

    def apply(self, item: Attributes, values: Attributes) -> dict[str, Attribute]:
        """The item after the update; the one before stays as it is, down to its maps.

        Raises:
            InvalidUpdate: it reads what is not there, or writes into what is not a map.
        """
        after = dict(item)
        written = [(path, _needed(read(item, values))) for path, read in self.sets]
        written += [(path, _added(_at(path, item), _needed(read(item, values)))) for path, read in self.adds]
        for path, value in written:
            _holder(path, after)[path[-1]] = value
        for path, members in self.deletes:
            left = _without(_at(path, item), _needed(members(item, values)))
            if left is None:
                _holder(path, after).pop(path[-1], None)
            else:
                _holder(path, after)[path[-1]] = left
        for path in self.removed:
            _holder(path, after).pop(path[-1], None)
        return after


@lru_cache(None)
def condition_of(text: str, names: tuple[tuple[str, str], ...]) -> Condition:
    """``names`` are the pairs of ExpressionAttributeNames."""
    parser = _Parser(text, dict(names))
    holds = parser.either()
    parser.end()
    return Condition(holds, frozenset(parser.used_names), frozenset(parser.used_values))


@lru_cache(None)
def update_of(text: str, names: tuple[tuple[str, str], ...]) -> Update:
    parser = _Parser(text, dict(names))
    clauses: dict[str, list[tuple[Path, Read]]] = {}
    while parser.next in _CLAUSES:
        clause = parser.take()
        assert clause not in clauses, f"two clauses {clause}: {text}"
        clauses[clause] = parser.listed(_ACTIONS[clause])
    parser.end()
    paths = [path for clause in clauses.values() for path, _ in clause]
    assert paths, f"an update of nothing: {text}"
    assert not any(
        one[: len(other)] == other for place, one in enumerate(paths) for at, other in enumerate(paths) if at != place
    ), f"two paths overlap: {text}"
    removed = [path for path, _ in clauses.get("REMOVE", ())]
    names_used, values_used = frozenset(parser.used_names), frozenset(parser.used_values)
    sets, adds, deletes = (clauses.get(clause, ()) for clause in ("SET", "ADD", "DELETE"))
    return Update(sets, adds, deletes, removed, names_used, values_used)


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self._text = text
        self._names = names
        self._tokens = _tokens(text)
        self._at = 0
        self.used_names: set[str] = set()
        self.used_values: set[str] = set()

    @property
    def next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.next
        assert token is not None, f"more was expected: {self._text}"
        assert expected in (None, token), f"{expected} was expected and not {token}: {self._text}"
        self._at += 1
        return token

    def end(self) -> None:
        assert self.next is None, f"{self.next} was not expected: {self._text}"

    def listed(self, item: "Callable[[_Parser], tuple[Path, Read]]") -> list[tuple[Path, Read]]:
        found = [item(self)]
        while self.next == ",":
            self.take()
            found.append(item(self))
        return found

    def either(self) -> Holds:
        terms = [self._both()]
        while self.next == "OR":
            self.take()
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else lambda item, values: any(holds(item, values) for holds in terms)

    def _both(self) -> Holds:
        terms = [self._term()]
        while self.next == "AND":
            self.take()
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else lambda item, values: all(holds(item, values) for holds in terms)

    def _term(self) -> Holds:
        if self.next == "(":
            self.take()
            inner = self.either()
            self.take(")")
            return inner
        if self.next == "NOT":
            self.take()
            negated = self._term()
            return lambda item, values: not negated(item, values)
        if self.next == "contains":
            self.take()
            held, member = self._arguments(2)
            return lambda item, values: _contains(held(item, values), member(item, values))
        if self.next in ("attribute_exists", "attribute_not_exists"):
            wanted = self.take() == "attribute_exists"
            (path,) = self._arguments(1)
            return lambda item, values: (path(item, values) is not None) == wanted
        left, comparison = self._operand(), self.take()
        if comparison == "IN":
            choices = self._arguments()
            return lambda item, values: any(_equal(left(item, values), choice(item, values)) for choice in choices)
        right = self._operand()
        holds = _COMPARISONS.get(comparison)
        assert holds is not None, f"an unknown comparison, {comparison}: {self._text}"
        return lambda item, values: holds(left(item, values), right(item, values))

    def _arguments(self, count: int | None = None) -> list[Read]:
        self.take("(")
        found = [self._operand()]
        while self.next == ",":
            self.take()
            found.append(self._operand())
        self.take(")")
        assert count in (None, len(found)), f"{count} arguments were expected: {self._text}"
        return found

    def _operand(self) -> Read:
        token = self.next or ""
        if token.startswith(":"):
            self.used_values.add(self.take())
            return lambda item, values: values[token]
        if token == "size":
            self.take()
            (measured,) = self._arguments(1)
            return lambda item, values: _size(measured(item, values))
        if token == "if_not_exists":
            self.take()
            path, otherwise = self._arguments(2)
            return lambda item, values: found if (found := path(item, values)) is not None else otherwise(item, values)
        place = self.path()
        return lambda item, values: _at(place, item)

    def path(self) -> Path:
        parts = [self._name()]
        while self.next == ".":
            self.take()
            parts.append(self._name())
        return tuple(parts)

    def _name(self) -> str:
        token = self.take()
        if token.startswith("#"):
            self.used_names.add(token)
            return self._names[token]
        assert token[0].isalpha() or token[0] == "_", f"a name was expected and not {token}: {self._text}"
        assert self.next != "(", f"an unknown function, {token}: {self._text}"
        return token

    def assignment(self) -> tuple[Path, Read]:
        path = self.path()
        self.take("=")
        first = self._operand()
        if self.next not in ("+", "-"):
            return path, first
        sign = 1 if self.take() == "+" else -1
        second = self._operand()
        return path, lambda item, values: _sum(_needed(first(item, values)), _needed(second(item, values)), sign)

    def addition(self) -> tuple[Path, Read]:
        return self.path(), self._operand()

    def removal(self) -> tuple[Path, Read]:
        return self.path(), lambda item, values: None


_ACTIONS: Final[Mapping[str, Callable[[_Parser], tuple[Path, Read]]]] = {
    "SET": _Parser.assignment,
    "REMOVE": _Parser.removal,
    "ADD": _Parser.addition,
    "DELETE": _Parser.addition,
}


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        assert found, f"unreadable from {text[at:]!r} on: {text}"
        tokens.append(found[1])
        at = found.end()
    return tokens


def _at(path: Path, item: Attributes) -> Attribute | None:
    held = item.get(path[0])
    for part in path[1:]:
        if held is None or "M" not in held:
            return None
        held = held["M"].get(part)
    return held


def _holder(path: Path, item: dict[str, Attribute]) -> dict[str, Attribute]:
    """The map that holds the end of ``path``; it and what it lies in are copied on the way."""
    for part in path[:-1]:
        held = item.get(part)
        if held is None or "M" not in held:
            raise InvalidUpdate("The document path provided in the update expression is invalid for update")
        inner = dict(held["M"])
        item[part] = {"M": inner}
        item = inner
    return item


def _needed(value: Attribute | None) -> Attribute:
    if value is None:
        raise InvalidUpdate("The provided expression refers to an attribute that does not exist in the item")
    return value


def _sum(first: Attribute, second: Attribute, sign: int = 1) -> Attribute:
    if "N" not in first or "N" not in second:
        raise InvalidUpdate("Incorrect operand type for operator or function; operator or function: +")
    total = Decimal(first["N"]) + sign * Decimal(second["N"])
    return {"N": f"{total.normalize():f}"}


def _added(held: Attribute | None, amount: Attribute) -> Attribute:
    if "N" not in amount and "SS" not in amount:
        raise InvalidUpdate("Incorrect operand type for operator or function; operator: ADD")
    if held is None:
        return amount
    if "SS" in held and "SS" in amount:
        return {"SS": sorted({*held["SS"], *amount["SS"]})}
    if "N" not in held or "N" not in amount:
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    return _sum(held, amount)


def _without(held: Attribute | None, members: Attribute) -> Attribute | None:
    """Return the set without ``members``; None if none are left, because the table has no empty sets."""
    if "SS" not in members:
        raise InvalidUpdate("Incorrect operand type for operator or function; operator: DELETE")
    if held is None:
        return None
    if "SS" not in held:
        raise InvalidUpdate("An operand in the update expression has an incorrect data type")
    left = sorted({*held["SS"]} - {*members["SS"]})
    return {"SS": left} if left else None


def _contains(held: Attribute | None, member: Attribute | None) -> bool:
    """Tell whether a set of strings holds a string. Our code asks this of no other container."""
    return held is not None and member is not None and "SS" in held and member.get("S") in held["SS"]


def _size(value: Attribute | None) -> Attribute | None:
    if value is None:
        return None
    ((kind, held),) = value.items()
    if kind not in ("S", "B", "M", "L", "SS"):
        return None
    return {"N": str(len(held.encode() if kind == "S" else held))}


def _equal(one: Attribute | None, other: Attribute | None) -> bool:
    if one is None or other is None:
        return False
    return one == other or _number(one) == _number(other) is not None or _deep(one) == _deep(other)


def _number(value: Attribute) -> Decimal | None:
    return Decimal(value["N"]) if "N" in value else None


def _deep(value: Attribute) -> Any:
    """The value with its numbers as numbers."""
    ((kind, held),) = value.items()
    match kind:
        case "N":
            return kind, Decimal(held)
        case "M":
            return kind, {name: _deep(inner) for name, inner in held.items()}
        case "L":
            return kind, [_deep(inner) for inner in held]
        case _:
            return kind, held


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[Attribute | None, Attribute | None], bool]:
    def compare(one: Attribute | None, other: Attribute | None) -> bool:
        if one is None or other is None:
            return False
        ((kind, left),), ((other_kind, right),) = one.items(), other.items()
        if kind != other_kind or kind not in _ORDERED:
            return False
        if kind == "N":
            left, right = Decimal(left), Decimal(right)
        return holds(left, right)

    return compare


_COMPARISONS: Final[Mapping[str, Callable[[Attribute | None, Attribute | None], bool]]] = {
    "=": _equal,
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}
