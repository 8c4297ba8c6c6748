"""Describe the dataclasses of modules, as JSON: ``python dataclass_report.py [--stand-ins] MODULE ...``.

The modules come from the path of the interpreter: from the sources, or from a bundle, which must give the same descriptions. With
``--stand-ins`` every package that is neither in the standard library nor in the bundle is an empty one, so that an interpreter
without packages can import the modules.
"""

import copy
import dataclasses
import inspect
import json
import operator
import pickle
import re
import sys
import types
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

METHODS = ("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__",
           "__getstate__", "__setstate__", "__replace__")  # fmt: skip
ORDER = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


class _Meta(type):
    """Makes a class whose attributes and items, and what it returns when it is called, are that class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__

    def __call__(cls, *arguments: object, **named: object) -> Any:
        return cls if cls is StandIn else super().__call__()


class StandIn(metaclass=_Meta):
    """Anything of a package that is not installed."""

    def __init_subclass__(cls, **named: object) -> None:
        pass


class _Package(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class _Packages:
    """Finds an empty package for every name that nothing else finds."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_known = name.partition(".")[0] in (*sys.stdlib_module_names, "spass", "functions")
        return None if is_known else ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def classes(modules: list[str]) -> dict[str, type]:
    """Return every dataclass at the top level of the modules, by its full name."""
    own = [
        (name, one) for name in modules for one in vars(import_module(name)).values() if getattr(one, "__module__", "") == name
    ]
    return {
        f"{name}.{one.__qualname__}": one for name, one in own if isinstance(one, type) and "__dataclass_fields__" in vars(one)
    }


def is_written_out(kind: type) -> bool:
    """Tell whether ``dataclasses`` made no method of the class."""
    codes = [getattr(vars(kind).get(name), "__code__", None) for name in METHODS]
    return all(code.co_filename != "<string>" for code in codes if code)


def describe(kind: type) -> dict[str, Any]:
    abstract = getattr(kind, "__abstractmethods__", ())
    init: Any = vars(kind).get("__init__")
    return {
        "fields": {name: _field(one) for name, one in kind.__dataclass_fields__.items()},  # type: ignore[attr-defined]
        "methods": {
            name: getattr(vars(kind)[name], "__qualname__", None)
            for name in METHODS
            if name in vars(kind) and vars(kind)[name] is not None
        },
        "signature": init and [_text(inspect.signature(init)), _text(init.__annotations__)],
        "slots": vars(kind).get("__slots__"),
        "match": getattr(kind, "__match_args__", None),
        "parameters": _text(kind.__dataclass_params__),  # type: ignore[attr-defined]
        "document": _text(kind.__doc__),
        "attributes": {name: _text(value) for name, value in sorted(vars(kind).items()) if not name.startswith("__")},
        "annotations": _text(vars(kind).get("__annotations__")),
        "abstract": sorted(abstract),
        "parents": [base.__qualname__ for base in kind.__mro__],
        "objects": _objects(type(kind.__name__, (kind,), dict.fromkeys(abstract)) if abstract else kind),
    }


def _field(one: "dataclasses.Field[Any]") -> list[Any]:
    flags = [one.init, one.repr, one.hash, one.compare, _text(one.kw_only), one.name, _text(one.metadata)]
    return [*flags, _text(one._field_type), _text(one.type), _text(one.default), _text(one.default_factory)]  # type: ignore[attr-defined]


def _objects(kind: type) -> dict[str, Any]:
    first, same, other = _made(kind, "x"), _made(kind, "x"), _made(kind, "y")
    fields = [one.name for one in dataclasses.fields(kind)]
    done: dict[str, Callable[[], object]] = {}
    for one in ORDER:
        done |= {one.__name__: partial(one, first, same), f"{one.__name__} another": partial(one, first, other)}
    done |= {
        "repr": lambda: repr(first),
        "hash": lambda: (hash(first) == hash(same), hash(first) == hash(other)),
        "set": lambda: [_outcome(partial(setattr, _made(kind, "x"), name, "z")) for name in fields],
        "delete": lambda: [_outcome(partial(delattr, _made(kind, "x"), name)) for name in fields],
        "pickle": lambda: [_values(pickle.loads(pickle.dumps(first, version))) for version in range(2, 6)],
        "copy": lambda: _values(copy.copy(first)),
        "replace": lambda: _values(dataclasses.replace(first, **{fields[0]: "z"} if fields else {})),
        "asdict": lambda: dataclasses.asdict(first),
        "astuple": lambda: dataclasses.astuple(first),
        "init": lambda: _values(kind()),
        "init with all": lambda: _values(kind(**{one.name: f"value {one.name}" for one in dataclasses.fields(kind) if one.init})),
        "init with positions": lambda: _values(kind(*[one.name for one in dataclasses.fields(kind)])),
        "init with more": lambda: kind(*range(100)),
    }
    return {name: _outcome(action) for name, action in done.items()}


def _made(kind: Any, text: str) -> Any:
    """Return an object of the class, even of one whose ``__init__`` or ``__post_init__`` would refuse the texts in its fields."""
    made = kind.__new__(kind)
    for one in dataclasses.fields(kind):
        object.__setattr__(made, one.name, f"{text} {one.name}")
    return made


def _values(made: Any) -> list[str]:
    return [type(made).__qualname__, *(_text(getattr(made, one.name, "not set")) for one in dataclasses.fields(made))]


def _outcome(action: Callable[[], object]) -> str:
    try:
        return _text(action())
    except Exception as error:  # noqa: BLE001 (the error is what is described)
        return f"{type(error).__name__}: {_text(error)}"


def _text(value: object) -> str:
    """Return the text of ``repr`` without addresses, random ids and clocks."""
    text = repr(value) if not isinstance(value, Exception) else str(value)
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{12,}\b|\b\d{3,}(\.\d+)?\b|[a-z]{2,4}_[0-9A-Za-z]{10,}", "...", text)


def main(arguments: list[str]) -> None:
    has_stand_ins = arguments[0] == "--stand-ins"
    if has_stand_ins:
        sys.meta_path.append(_Packages())
        del arguments[0]
    found = classes(arguments)
    # Before anything else: this must not depend on what the description reads.
    written_out = {name: is_written_out(kind) for name, kind in found.items()}
    outcomes = {name: _outcome(vars(import_module(name)).get("outcome", lambda: None)) for name in arguments}
    for kind in found.values():
        if has_stand_ins and "__post_init__" in vars(kind):
            # It might work for ever with a value that is not what it seems.
            kind.__post_init__ = lambda *_arguments: None  # type: ignore[attr-defined]
    described = {name: {"is written out": written_out[name], **describe(kind)} for name, kind in found.items()}
    json.dump({"classes": described, "outcomes": outcomes}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
