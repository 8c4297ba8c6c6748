"""Update expressions and their conditions, put together piece by piece: no I/O."""

from decimal import Decimal
from typing import Final, Literal

from spass.aws.attributes import Value
from spass.aws.keys import Key
from spass.aws.table import Condition, Update

_CLAUSES: Final = ("SET", "REMOVE", "ADD", "DELETE")


class Expression:
    """An update expression and its condition. A path is a name, or a name and a key below it."""

    def __init__(self) -> None:
        self._changes: dict[str, list[str]] = {clause: [] for clause in _CLAUSES}
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: dict[str, Value] = {}

    def set(self, path: tuple[str, ...], value: Value) -> None:
        self._changes["SET"].append(f"{self._path(path)} = {self._value(value)}")

    def add(self, path: tuple[str, ...], amount: int | Decimal) -> None:
        """Add to a number that exists."""
        self._changes["SET"].append(f"{self._path(path)} = {self._path(path)} + {self._value(amount)}")

    def count(self, name: str, amount: int | Decimal) -> None:
        """Add to a number that may not exist, and is 0 then."""
        self._changes["ADD"].append(f"{self._path((name,))} {self._value(amount)}")

    def insert(self, name: str, member: str) -> None:
        """Add a member to a set that may not exist."""
        self._changes["ADD"].append(f"{self._path((name,))} {self._value(frozenset((member,)))}")

    def discard(self, name: str, member: str) -> None:
        """Take a member out of a set. The set goes with its last member."""
        self._changes["DELETE"].append(f"{self._path((name,))} {self._value(frozenset((member,)))}")

    def remove(self, path: tuple[str, ...]) -> None:
        self._changes["REMOVE"].append(self._path(path))

    def require(self, path: tuple[str, ...], comparison: Literal["=", "<="], value: Value) -> None:
        self._conditions.append(f"{self._path(path)} {comparison} {self._value(value)}")

    def require_size(self, name: str, count: int) -> None:
        self.require_presence((name,), present=True)  # DynamoDB needs no such condition, but moto fails without it
        self._conditions.append(f"size({self._path((name,))}) = {self._value(count)}")

    def require_member(self, name: str, member: str, *, present: bool) -> None:
        contains = f"contains({self._path((name,))}, {self._value(member)})"
        self._conditions.append(contains if present else f"NOT {contains}")

    def require_presence(self, path: tuple[str, ...], *, present: bool) -> None:
        function = "attribute_exists" if present else "attribute_not_exists"
        self._conditions.append(f"{function}({self._path(path)})")

    def update(self, key: Key) -> Update:
        changes = [f"{clause} {', '.join(parts)}" for clause, parts in self._changes.items() if parts]
        names = {placeholder: name for name, placeholder in self._names.items()}
        return Update(key, " ".join(changes), names, self._values, Condition(" AND ".join(self._conditions)))

    def _path(self, path: tuple[str, ...]) -> str:
        return ".".join(self._names.setdefault(part, f"#n{len(self._names)}") for part in path)

    def _value(self, value: Value) -> str:
        name = f":v{len(self._values)}"
        self._values[name] = value
        return name
