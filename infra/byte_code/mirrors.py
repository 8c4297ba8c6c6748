"""Build a stand-in of each class, to which the real ``dataclasses`` adds its methods: they decide which, and in which order.

A mirror has the bases, fields and names of the class in the source, but no code of it. What a value is does not matter here, only
whether a field has one.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, InitVar, dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final

from infra.byte_code.sources import Definition, Module, Sources, Unresolved

_DATACLASS: Final = "dataclasses.dataclass"
_FIELD: Final = "dataclasses.field"
_KNOWN_DECORATORS: Final = frozenset({_DATACLASS, "typing.final", "typing.runtime_checkable"})
_MARKERS: Final[Mapping[str, Any]] = {
    "typing.ClassVar": ClassVar,
    "typing_extensions.ClassVar": ClassVar,
    "dataclasses.InitVar": InitVar[object],
    "dataclasses.KW_ONLY": KW_ONLY,
}
_PLAIN_VALUES: Final = (ast.BinOp, ast.Compare, ast.Constant, ast.JoinedStr, ast.Lambda, ast.Subscript, ast.Tuple, ast.UnaryOp)
_PLAIN_BASES: Final = frozenset({"pydantic.BaseModel", "typing.NamedTuple"})
_MUTABLE_VALUES: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


class _Generic:
    __slots__ = ()


class _Protocol(_Generic):
    __slots__ = ()


class _ABC:
    __slots__ = ()


_STAND_INS: Final[Mapping[str, type]] = {"typing.Generic": _Generic, "typing.Protocol": _Protocol, "abc.ABC": _ABC}


@dataclass(frozen=True, slots=True)
class Mirror:
    """The stand-in of a class, the options of its decorator (None: it has none), and what its body binds itself."""

    kind: type
    options: Mapping[str, bool] | None
    body: Mapping[str, object]
    own_fields: tuple[str, ...]


class Mirrors:
    """The mirrors of the classes of a bundle."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._built: dict[ast.AST, Mirror] = {}

    def mirror(self, module: Module, node: ast.ClassDef) -> Mirror:
        """Return the mirror of a class at the top level of ``module``.

        Raises:
            Unresolved: the source does not say for certain what the class is.
        """
        if node not in self._built:
            self._built[node] = self._build(module, node)
        return self._built[node]

    def decorator(self, module: Module, node: ast.ClassDef) -> ast.expr | None:
        """Return the decorator ``dataclass`` of a class, or None if it has none.

        Raises:
            Unresolved: what a decorator is depends on how the program runs.
        """
        return next((one for one in node.decorator_list if self._decorates(module, one) == _DATACLASS), None)

    def _decorates(self, module: Module, decorator: ast.expr) -> Definition | str | None:
        return self._sources.resolve(module, decorator.func if isinstance(decorator, ast.Call) else decorator)

    def _build(self, module: Module, node: ast.ClassDef) -> Mirror:
        if node.keywords:
            raise Unresolved("the class statement has keywords")
        if other := next((one for one in node.decorator_list if self._decorates(module, one) not in _KNOWN_DECORATORS), None):
            raise Unresolved(f"the decorator {ast.unparse(other)} may change the class")
        decorator = self.decorator(module, node)
        options = _options(decorator) if decorator else None
        body = _Body(self, self._sources, module, node, is_dataclass=decorator is not None)
        bases = tuple(self._base(module, base, is_dataclass=decorator is not None) for base in node.bases)
        own = tuple(body.annotations)
        try:
            kind = type(node.name, bases, {**body.names, "__annotations__": body.annotations, "__module__": __name__})
            if options is not None:
                kind = dataclass(**options)(kind)
        except (TypeError, ValueError) as error:
            raise Unresolved(str(error)) from None
        if options is not None:
            for name, one in vars(kind)["__dataclass_fields__"].items():
                if name in own and name not in body.names and one.default is not MISSING:
                    raise Unresolved(f"{name} has the default of a base")
        return Mirror(kind, options, body.names, own)

    def _base(self, module: Module, base: ast.expr, *, is_dataclass: bool) -> type:
        resolved = self._sources.resolve(module, base.value if isinstance(base, ast.Subscript) else base)
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef):
            kind = self.mirror(resolved.module, resolved.node).kind
            if is_dataclass and any("__init_subclass__" in vars(one) for one in kind.__mro__[:-1]):
                raise Unresolved(f"the base {ast.unparse(base)} may change the class")
            return kind
        if isinstance(resolved, str):
            if resolved == "typing.Protocol" and is_dataclass:
                raise Unresolved("a protocol has no methods of its own")
            if found := _STAND_INS.get(resolved) or _builtin(resolved):
                return found
        raise Unresolved(f"the base {ast.unparse(base)} is not known")

    def value(self, module: Module, value: ast.expr) -> object:
        """Return what stands for the value that the body of a class assigns: a ``Field`` for a field, else any object.

        Raises:
            Unresolved: the value may be a field or a descriptor.
        """
        match value:
            case ast.Call():
                return self._called(module, value)
            case ast.Name() | ast.Attribute():
                resolved = self._sources.resolve(module, value)
                if isinstance(resolved, Definition) and isinstance(resolved.node, ast.Call):
                    return self.value(resolved.module, resolved.node)
                return object()
            case _ if isinstance(value, _MUTABLE_VALUES):
                return []
            case _ if isinstance(value, _PLAIN_VALUES):
                return _literal(value)
        raise Unresolved(f"the value {ast.unparse(value)} may be a field")

    def _called(self, module: Module, call: ast.Call) -> object:
        resolved = self._sources.resolve(module, call.func)
        if resolved == _FIELD:
            return _field(call)
        if self._is_plain(resolved):
            return object()
        if isinstance(resolved, Definition):
            match resolved.node:
                case ast.Call(func=made, args=[_, _]) if self._sources.resolve(resolved.module, made) == "typing.NewType":
                    return self.value(module, call.args[0])
                case ast.FunctionDef(decorator_list=[], body=[*_, ast.Return(value=ast.Call() as returned)]) as node if (
                    sum(isinstance(one, ast.Return) for one in ast.walk(node)) == 1
                ):
                    return self._called(resolved.module, returned)
        raise Unresolved(f"the value {ast.unparse(call)} may be a field or a descriptor")

    def _is_plain(self, resolved: Definition | str | None) -> bool:
        """Tell whether this is a class whose objects are not descriptors."""
        if isinstance(resolved, str):
            return resolved in _PLAIN_BASES or _is_plain_class(resolved)
        if resolved is None or not isinstance(resolved.node, ast.ClassDef):
            return False
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in resolved.node.bases]
        bound = {one.name for one in resolved.node.body if isinstance(one, ast.FunctionDef)}
        return not bound & {"__get__", "__set_name__"} and all(
            self._is_plain(self._sources.resolve(resolved.module, base)) for base in bases
        )


class _Body:
    """What the body of a class binds."""

    def __init__(self, mirrors: Mirrors, sources: Sources, module: Module, node: ast.ClassDef, *, is_dataclass: bool) -> None:
        self._mirrors, self._sources, self._module, self._class = mirrors, sources, module, node
        self._is_dataclass = is_dataclass
        self.names: dict[str, object] = {}
        self.annotations: dict[str, object] = {}
        if ast.get_docstring(node) is not None:
            self.names["__doc__"] = "documented"
        for statement in node.body:
            self._read(statement)

    def _read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._bind(name, _code())
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                if self._mangle(name) in self.annotations:
                    raise Unresolved(f"{name} is annotated twice")
                if value:
                    self._bind(name, self._value(value))
                elif self._mangle(name) in self.names:
                    raise Unresolved(f"{name} is a field and has another meaning")
                self.annotations[self._mangle(name)] = self._marker(annotation)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._bind(name, _literal(value))
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise Unresolved(f"the body contains: {ast.unparse(statement).splitlines()[0]}")

    def _bind(self, name: str, value: object) -> None:
        name = self._mangle(name)
        if self._is_dataclass and name in self.annotations:
            raise Unresolved(f"{name} is a field and has another meaning")
        self.names[name] = value

    def _value(self, value: ast.expr) -> object:
        if not self._is_dataclass:
            return _literal(value)
        if isinstance(value, ast.Name) and self._mangle(value.id) in self.names:
            if isinstance(self.names[self._mangle(value.id)], Field):
                raise Unresolved(f"{value.id} is a field, and a default too")
            return object()
        return self._mirrors.value(self._module, value)

    def _marker(self, annotation: ast.expr) -> object:
        """Return the annotation of the mirror: ``ClassVar``, ``InitVar`` or ``KW_ONLY``, or an object of its own for a field."""
        module = self._module
        while True:
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                annotation = ast.parse(annotation.value, mode="eval").body
            resolved = self._sources.resolve(module, annotation.value if isinstance(annotation, ast.Subscript) else annotation)
            if isinstance(resolved, str):
                return _MARKERS.get(resolved) or object()
            if not isinstance(resolved, Definition) or not isinstance(resolved.node, ast.expr):
                return object()
            module, annotation = resolved.module, resolved.node

    def _mangle(self, name: str) -> str:
        """Return the name as the compiler changes it: private names of a class contain its name."""
        owner = self._class.name.lstrip("_")
        return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name


def _code() -> Callable[..., None]:
    return lambda *_arguments, **_named: None


def _literal(value: ast.expr) -> object:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return object()


def _options(decorator: ast.expr) -> dict[str, bool]:
    """Return the keyword arguments of the decorator ``dataclass``."""
    if not isinstance(decorator, ast.Call):
        return {}
    found = {keyword.arg: _literal(keyword.value) for keyword in decorator.keywords if keyword.arg}
    given = {name: value for name, value in found.items() if isinstance(value, bool)}
    if decorator.args or len(given) != len(decorator.keywords):
        raise Unresolved(f"the options of {ast.unparse(decorator)} are not constants")
    return given


def _field(call: ast.Call) -> object:
    """Return the field that a call of ``field`` makes, with stand-ins of its default and its factory."""
    stand_ins: dict[str, Any] = {"default": object(), "default_factory": object, "metadata": {}}
    given: dict[str, Any] = {}
    for keyword in call.keywords:
        value = stand_ins.get(keyword.arg or "", _literal(keyword.value))
        if keyword.arg is None or (keyword.arg not in stand_ins and not isinstance(value, bool | None)):
            raise Unresolved(f"the options of {ast.unparse(call)} are not constants")
        if keyword.arg == "default" and isinstance(keyword.value, _MUTABLE_VALUES):
            raise Unresolved(f"the default of {ast.unparse(call)} can change")
        given[keyword.arg] = value
    if call.args:
        raise Unresolved(f"the options of {ast.unparse(call)} have no names")
    return field(**given)


def _builtin(path: str) -> type | None:
    owner, _, name = path.rpartition(".")
    found = getattr(builtins, name, None) if owner == "builtins" else None
    return found if isinstance(found, type) else None


def _is_plain_class(path: str) -> bool:
    """Tell whether the path is a class of the standard library whose objects are not descriptors."""
    owner, _, name = path.rpartition(".")
    if owner.partition(".")[0] not in sys.stdlib_module_names and owner != "builtins":
        return False
    try:
        found = getattr(import_module(owner), name, None)
    except ImportError:  # the method of a class, for example
        return False
    return isinstance(found, type) and not hasattr(found, "__get__") and not hasattr(found, "__set_name__")
