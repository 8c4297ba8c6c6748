"""Update expressions and their conditions, put together piece by piece: no I/O."""

from decimal import Decimal
from typing import Literal

from spass.aws.attributes import Value
from spass.aws.keys import Key
from spass.aws.table import Condition, Update


class Expression:
    """An update expression and its condition. A path is a name, or a name and a key below it."""

    def __init__(self) -> None:
        self._sets: list[str] = []
        self._removes: list[str] = []
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: dict[str, Value] = {}

    def set(self, path: tuple[str, ...], value: Value) -> None:
        self._sets.append(f"{self._path(path)} = {self._value(value)}")

    def add(self, path: tuple[str, ...], amount: int | Decimal) -> None:
        self._sets.append(f"{self._path(path)} = {self._path(path)} + {self._value(amount)}")

    def remove(self, path: tuple[str, ...]) -> None:
        self._removes.append(self._path(path))

    def require(self, path: tuple[str, ...], comparison: Literal["=", "<="], value: Value) -> None:
        self._conditions.append(f"{self._path(path)} {comparison} {self._value(value)}")

    def require_fewer(self, path: tuple[str, ...], count: int) -> None:
        self._conditions.append(f"size({self._path(path)}) < {self._value(count)}")

    def require_presence(self, path: tuple[str, ...], *, present: bool) -> None:
        function = "attribute_exists" if present else "attribute_not_exists"
        self._conditions.append(f"{function}({self._path(path)})")

    def update(self, key: Key) -> Update:
        changes = [f"SET {', '.join(self._sets)}"] if self._sets else []
        if self._removes:
            changes.append(f"REMOVE {', '.join(self._removes)}")
        names = {placeholder: name for name, placeholder in self._names.items()}
        return Update(key, " ".join(changes), names, self._values, Condition(" AND ".join(self._conditions)))

    def _path(self, path: tuple[str, ...]) -> str:
        return ".".join(self._names.setdefault(part, f"#n{len(self._names)}") for part in path)

    def _value(self, value: Value) -> str:
        name = f":v{len(self._values)}"
        self._values[name] = value
        return name
