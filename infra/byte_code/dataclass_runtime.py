"""What the expanded dataclasses of a bundle need when they run. ``infra.byte_code`` copies this file into the bundle.

The attributes that a start does not need are descriptors, which let ``dataclasses`` build the attribute when it is first read.
"""

import dataclasses
import inspect
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

FrozenInstanceError: Final = dataclasses.FrozenInstanceError
HAS_DEFAULT_FACTORY: Final[Any] = dataclasses._HAS_DEFAULT_FACTORY  # type: ignore[attr-defined]  # noqa: SLF001
getstate: Final[Any] = dataclasses._dataclass_getstate  # type: ignore[attr-defined]  # noqa: SLF001
setstate: Final[Any] = dataclasses._dataclass_setstate  # type: ignore[attr-defined]  # noqa: SLF001
replace: Final[Any] = getattr(dataclasses, "_replace", None)  # from Python 3.13 on
set_field: Final = object.__setattr__
_shown: Final[set[tuple[int, int]]] = set()
_building: Final = threading.RLock()


def represent(value: object, names: tuple[str, ...]) -> str:
    """Return the text of ``repr``. An object that contains itself is ``...`` there."""
    key = (id(value), threading.get_ident())
    if key in _shown:
        return "..."
    _shown.add(key)
    try:
        return f"{value.__class__.__qualname__}({', '.join([f'{name}={getattr(value, name)!r}' for name in names])})"
    finally:
        _shown.discard(key)


class _Attribute:
    """An attribute of a class that is built when it is first read."""

    __slots__ = ()
    name = ""

    def __get__(self, instance: object, owner: type) -> Any:  # noqa: ANN401 (whatever the attribute is)
        kind = next(one for one in owner.__mro__ if self.name in vars(one))
        with _building:
            if vars(kind)[self.name] is self:
                setattr(kind, self.name, self.build(kind))
        return vars(kind)[self.name]

    def build(self, kind: type) -> object:
        raise NotImplementedError


class Fields(_Attribute):
    """The fields. ``values`` are what the body of the class assigned to its own fields."""

    __slots__ = ("_kw_only", "_values")
    name = "__dataclass_fields__"

    def __init__(self, values: Mapping[str, object], *, kw_only: bool = False) -> None:
        self._values = values
        self._kw_only = kw_only

    def build(self, kind: type) -> object:
        found: dict[str, Any] = {}
        for base in kind.__mro__[-1:0:-1]:
            found.update(getattr(base, self.name, {}))
        own = {"__annotations__": vars(kind).get("__annotations__", {}), "__module__": kind.__module__, "__doc__": kind.__name__}
        made = type(kind.__name__, (), {**own, **self._values})
        dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=self._kw_only)(made)
        found.update(getattr(made, self.name))
        return found


class Parameters(_Attribute):
    """The options of the decorator."""

    __slots__ = ("_options",)
    name = "__dataclass_params__"

    def __init__(self, **options: bool) -> None:
        self._options = options

    def build(self, kind: type) -> object:
        return _parameters(**self._options)


@cache
def _parameters(**options: bool) -> object:
    return vars(dataclasses.dataclass(**options)(type("Empty", (), {})))["__dataclass_params__"]


class _Docstring(_Attribute):
    """The docstring of a class that has none in its source: its signature."""

    __slots__ = ()
    name = "__doc__"

    def build(self, kind: type) -> object:
        return kind.__name__ + str(inspect.signature(kind)).replace(" -> None", "")


DOCSTRING: Final = _Docstring()
