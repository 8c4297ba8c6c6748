"""Write out what ``dataclasses`` adds to a class, as statements at the end of its body."""

import ast
import copy
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, InitVar
from types import MemberDescriptorType
from typing import Any, ClassVar, Final

from infra.byte_code.mirrors import Mirror
from infra.byte_code.sources import Unresolved

RUNTIME: Final = "__dataclasses__"
"""The name of ``dataclass_runtime`` in an expanded module. A name that ends with underscores is not private in a class."""
_ORDER: Final = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_IS_COMPARED_BY_FIELD: Final = sys.version_info >= (3, 13)  # and as tuples before, which takes the same NaN for equal


def expand(node: ast.ClassDef, decorator: ast.expr, mirror: Mirror) -> ast.ClassDef:
    """Return the class without its decorator ``dataclass``, and with all that the decorator would add.

    Raises:
        Unresolved: it cannot be written out.
    """
    expanded = copy.copy(node)
    expanded.decorator_list = [one for one in node.decorator_list if one is not decorator]
    added = ast.parse("\n".join(_Writer(node, mirror).statements())).body
    for one in (one for statement in added for one in ast.walk(statement)):
        if isinstance(one, ast.stmt | ast.expr | ast.arg | ast.keyword):
            # What is written out has no line of its own.
            one.lineno = one.end_lineno = node.lineno
            one.col_offset = one.end_col_offset = node.col_offset
    expanded.body = [*node.body, *added]
    return expanded


class _Writer:
    """Writes the statements for one class."""

    def __init__(self, node: ast.ClassDef, mirror: Mirror) -> None:
        self._node: Final = node
        self._kind: Final = mirror.kind
        self._body: Final = mirror.body
        self._options: Final = mirror.options or {}
        self._fields: Final[dict[str, Field[Any]]] = mirror.kind.__dataclass_fields__  # type: ignore[attr-defined]
        self._values: Final = [name for name in mirror.own_fields if name in self._fields and name in mirror.body]
        self._own: Final = {name for name in mirror.own_fields if name in self._fields}
        real = [one for one in self._fields.values() if one.type is not ClassVar and not isinstance(one.type, InitVar)]
        self._names: Final = [one.name for one in real]
        self._compared: Final = [one.name for one in real if one.compare]
        self._hashed: Final = [one.name for one in real if (one.compare if one.hash is None else one.hash)]
        self._shown: Final = [one.name for one in real if one.repr]

    def statements(self) -> Iterator[str]:
        if self._adds("__slots__"):
            yield f"__slots__ = {vars(self._kind)['__slots__']!r}"
        if self._adds("__init__"):
            yield from self._init()
        yield from self._comparisons()
        if self._options.get("frozen"):
            yield from self._frozen()
        yield from self._attributes()
        for name in self._values:
            yield from self._class_attribute(name)

    def _adds(self, name: str) -> bool:
        added = vars(self._kind).get(name)
        return added is not None and added is not self._body.get(name)

    def _init(self) -> Iterator[str]:
        """Yield ``__init__``, and before it the factories as global names: a method does not see the names of its class."""
        inherited = [name for name in self._fields if name not in self._own and self._fields[name].type is not ClassVar]
        bases = {name: self._base(self._fields[name]) for name in inherited}
        for number in sorted({*bases.values()}):
            yield f"__base{number}__ = {self._base_name(number)}.__dataclass_fields__"
        place = {name: f"__base{number}__[{name!r}]" for name, number in bases.items()}
        initialized = [one for one in self._fields.values() if one.type is not ClassVar]
        assignments = [(one, value) for one in initialized if (value := self._initial(one))]
        for one, value in assignments:
            if value != one.name:
                attribute = "default" if one.default_factory is MISSING else "default_factory"
                yield f"global {self._global(one)}"
                yield f"{self._global(one)} = {self._specified(one, place, attribute)}"
        owner = "__dataclass_self__" if "self" in self._fields else "self"
        parameters = self._parameters()
        yield f"def __init__({', '.join([owner, *self._signature(parameters, place)])}):"
        for one, value in assignments:
            if not isinstance(one.type, InitVar):
                is_frozen = self._options.get("frozen")
                yield f" {RUNTIME}.set_field({owner}, {one.name!r}, {value})" if is_frozen else f" {owner}.{one.name} = {value}"
        if hasattr(self._kind, "__post_init__"):
            yield f" {owner}.__post_init__({', '.join(one.name for one in initialized if isinstance(one.type, InitVar))})"
        yield " pass"
        # Not in the signature, where an import of annotations from __future__ would make texts of these expressions.
        types = [f"{name!r}: {f'{place[name]}.type' if name in place else f'__annotations__[{name!r}]'}" for name in parameters]
        yield f"__init__.__annotations__ = {{{', '.join([*types, repr('return') + ': None'])}}}"
        yield from (f"del __base{number}__" for number in sorted({*bases.values()}))

    def _base(self, inherited: Field[Any]) -> int:
        """Return the number of the base that has the field."""
        for number, base in enumerate(self._kind.__bases__):
            if getattr(base, "__dataclass_fields__", {}).get(inherited.name) is inherited:
                return number
        raise Unresolved(f"{inherited.name} is not the field of one base")

    def _base_name(self, number: int) -> str:
        base = self._node.bases[number]
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        if name.partition(".")[0] in self._body:
            raise Unresolved(f"{name} has another meaning in the class")
        return name

    def _parameters(self) -> dict[str, inspect.Parameter]:
        _, *parameters = inspect.signature(self._kind.__init__).parameters.values()  # type: ignore[misc]
        return {parameter.name: parameter for parameter in parameters}

    def _signature(self, parameters: dict[str, inspect.Parameter], place: dict[str, str]) -> Iterator[str]:
        is_named = False
        for name, parameter in parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and not is_named:
                is_named = True
                yield "*"
            one = self._fields[name]
            if one.default_factory is not MISSING:
                yield f"{name}={RUNTIME}.HAS_DEFAULT_FACTORY"
            else:
                yield name if one.default is MISSING else f"{name}={self._specified(one, place, 'default')}"

    def _initial(self, one: Field[Any]) -> str:
        """Return what ``__init__`` assigns to the field, or nothing."""
        if one.default_factory is not MISSING:
            made = f"{self._global(one)}()"
            return f"{made} if {one.name} is {RUNTIME}.HAS_DEFAULT_FACTORY else {one.name}" if one.init else made
        if one.init:
            return one.name
        return self._global(one) if one.default is not MISSING and self._options.get("slots") else ""

    def _specified(self, one: Field[Any], place: dict[str, str], attribute: str) -> str:
        """Return the expression for the default or the factory of a field."""
        if one.name in place:
            return f"{place[one.name]}.{attribute}"
        return f"{one.name}.{attribute}" if isinstance(self._body[one.name], Field) else one.name

    def _global(self, one: Field[Any]) -> str:
        return f"__dataclass_{self._node.lineno}_{one.name}__"

    def _comparisons(self) -> Iterator[str]:
        if self._adds("__repr__"):
            yield f"def __repr__(self): return {RUNTIME}.represent(self, {tuple(self._shown)!r})"
        own, others = _attributes("self", self._compared), _attributes("other", self._compared)
        if self._adds("__eq__"):
            pairs = " and ".join(f"self.{name} == other.{name}" for name in self._compared) or "True"
            yield "def __eq__(self, other):"
            if _IS_COMPARED_BY_FIELD:
                yield " if self is other: return True"
            yield f" if other.__class__ is self.__class__: return {pairs if _IS_COMPARED_BY_FIELD else f'{own} == {others}'}"
            yield " return NotImplemented"
        for name, sign in _ORDER.items():
            if self._adds(name):
                yield f"def {name}(self, other):"
                yield f" if other.__class__ is self.__class__: return {own} {sign} {others}"
                yield " return NotImplemented"
        if self._adds("__hash__"):
            yield f"def __hash__(self): return hash({_attributes('self', self._hashed)})"

    def _frozen(self) -> Iterator[str]:
        condition = f"type(self) is __class__ or name in {tuple(self._names)!r}"
        for method, parameters, verb in (("__setattr__", "name, value", "assign to"), ("__delattr__", "name", "delete")):
            yield f"def {method}(self, {parameters}):"
            yield f" if {condition}: raise {RUNTIME}.FrozenInstanceError(f'cannot {verb} field {{name!r}}')"
            yield f" super(__class__, self).{method}({parameters})"

    def _attributes(self) -> Iterator[str]:
        for name, shared in (("__getstate__", "getstate"), ("__setstate__", "setstate"), ("__replace__", "replace")):
            if self._adds(name):
                yield f"{name} = {RUNTIME}.{shared}"
        if self._adds("__match_args__"):
            yield f"__match_args__ = {vars(self._kind)['__match_args__']!r}"
        if self._adds("__doc__"):
            yield f"__doc__ = {RUNTIME}.DOCSTRING"
        values = ", ".join(f"{name!r}: {name}" for name in self._values)
        options = [f"{name}={value}" for name, value in self._options.items()]
        kw_only = f", kw_only={self._options['kw_only']}" if "kw_only" in self._options else ""
        yield f"__dataclass_fields__ = {RUNTIME}.Fields({{{values}}}{kw_only})"
        yield f"__dataclass_params__ = {RUNTIME}.Parameters({', '.join(options)})"

    def _class_attribute(self, name: str) -> Iterator[str]:
        """Yield what changes the value of a field to the attribute that the class has in the end."""
        if name not in vars(self._kind) or isinstance(vars(self._kind)[name], MemberDescriptorType):
            yield f"del {name}"
        elif isinstance(self._body[name], Field):
            yield f"{name} = {name}.default"


def _attributes(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"
