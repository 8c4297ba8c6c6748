"""Find what a name in a source file stands for, without importing the file."""

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

_STATEMENTS: Final = (ast.stmt, ast.ExceptHandler, ast.match_case)
# It has what the standard library has, so a bundle that contains it does not need to be read.
_OUTSIDE: Final = "typing_extensions"


class Unresolved(Exception):
    """The source does not say for certain what the program does. The message says where."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A class, a function or the value of an assignment at the top level of a module of the bundle."""

    module: "Module"
    node: ast.AST


@dataclass(frozen=True, eq=False)
class Module:
    """A parsed source file. ``path`` is relative to the folder of the bundle."""

    path: Path
    source: bytes
    tree: ast.Module

    @property
    def name(self) -> str:
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def names(self) -> Mapping[str, ast.AST | str | None]:
        """Return what the top level binds: a node, or the dotted path of an import, or None if it depends on how the program
        runs."""
        found: dict[str, ast.AST | str | None] = {}
        for name, bound in self._bindings(self.tree.body):
            found[name] = bound if name not in found or found[name] == bound else None
        return found

    def statements(self) -> Iterator[ast.AST]:
        """Yield every statement, also inside others, except those for type checkers only."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            yield node
            if isinstance(node, ast.If) and _is_type_checking(node.test):
                waiting.extend(node.orelse)
            else:
                waiting.extend(one for one in ast.iter_child_nodes(node) if isinstance(one, _STATEMENTS))

    def _bindings(self, body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST | str | None]]:
        for node in body:
            match node:
                case ast.Import(names=names):
                    yield from (
                        (one.asname or one.name.partition(".")[0], one.name if one.asname else _top(one)) for one in names
                    )
                case ast.ImportFrom(names=names):
                    yield from ((one.asname or one.name, f"{self._package(node)}.{one.name}") for one in names)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name, node
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    yield name, value
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    yield from [(name, value)] if value else []
                case ast.If(test=test, orelse=otherwise) if _is_type_checking(test):
                    yield from self._bindings(otherwise)
                case _:
                    yield from ((name, None) for name in _stored(node))

    def _package(self, node: ast.ImportFrom) -> str:
        parents = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        base = parents[: len(parents) - node.level + 1] if node.level else []
        return ".".join([*base, *([node.module] if node.module else [])])


class Sources:
    """The source files of a bundle."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[Path, Module] = {}

    def module(self, path: Path) -> Module:
        """Return the module of this file.

        Raises:
            SyntaxError: Python cannot read it.
        """
        if path not in self._modules:
            source = (self._folder / path).read_bytes()
            self._modules[path] = Module(path, source, ast.parse(source, str(path)))
        return self._modules[path]

    def resolve(self, module: Module, expression: ast.AST) -> Definition | str | None:
        """Return the definition that an expression refers to, or the dotted path of something outside the bundle, or None.

        Raises:
            Unresolved: what the expression refers to depends on how the program runs.
        """
        match expression:
            case ast.Name(id=name):
                return self._lookup(module, name) or (f"builtins.{name}" if hasattr(builtins, name) else None)
            case ast.Attribute(value=value, attr=attribute):
                owner = self.resolve(module, value)
                return self._follow(f"{owner}.{attribute}") if isinstance(owner, str) else None
            case _:
                return None

    def _lookup(self, module: Module, name: str) -> Definition | str | None:
        if name not in module.names:
            return None
        bound = module.names[name]
        if bound is None:
            raise Unresolved(f"{module.name} binds {name} more than once, or on a condition")
        return self._follow(bound) if isinstance(bound, str) else Definition(module, bound)

    def _follow(self, path: str) -> Definition | str | None:
        owner, _, name = path.rpartition(".")
        if self._find(path) or not (module := self._find(owner)):
            return path
        return self._lookup(module, name)

    def _find(self, name: str) -> Module | None:
        place = Path(*name.split("."))
        files = (place.with_suffix(".py"), place / "__init__.py") if name not in ("", _OUTSIDE) else ()
        return next((self.module(file) for file in files if (self._folder / file).is_file()), None)


def _top(alias: ast.alias) -> str:
    """Return the package that ``import a.b`` binds."""
    return alias.name.partition(".")[0]


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield every name that a statement may bind."""
    for one in ast.walk(node):
        match one:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
