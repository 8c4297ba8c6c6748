"""Find the modules that a program imports. Run by the interpreter whose modules they are: ``python imports.py < request``.

The request is JSON: ``path`` (the folders that modules are found in, first match wins), ``roots`` (the modules that the program
starts with), ``own`` (the top-level names of its own code), ``named`` (imports that no statement shows, as pairs of importer and
imported module). The answer is JSON: ``reached`` (each module found, with its importer), ``missing`` (each top-level module that
is not found, with its importer) and ``numpy`` (each name that a reached module imports from numpy or reads as an attribute of it,
with that module; an attribute can import a package of numpy).

``reached`` follows every import, also one inside a function, except those for type checkers. ``missing`` follows only those that
must succeed: each import of the program's own code, and of others those at the top level of a module, outside ``try`` and ``if``.
"""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """A module, or a name inside one, that a module imports. ``certain``: every import of the importing module imports it."""

    module: str
    certain: bool


class Read(NamedTuple):
    """The imports of a module, and the names that it reads in numpy."""

    imports: list[Import]
    numpy: list[str]


@cache
def read(module: str, file: Path) -> Read:
    source = file.read_bytes()
    tree = ast.parse(source)
    return Read(list(imports_of(module, file, tree)), list(names_of("numpy", tree)) if b"numpy" in source else [])


@cache
def find(path: tuple[Path, ...], module: str) -> Path | None:
    """Return the file of a module, or the folder of a package without ``__init__.py``."""
    for folder in path:
        place = folder.joinpath(*module.split("."))
        for candidate in (
            place / "__init__.py",
            place.with_name(f"{place.name}.py"),
            *place.parent.glob(f"{place.name}.*.so"),
            place,
        ):
            if candidate.exists():
                return candidate
    return None


def imports_of(module: str, file: Path, tree: ast.Module) -> Iterator[Import]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    yield from _imports(tree.body, package, certain=True)


def _imports(nodes: list[ast.stmt], package: str, *, certain: bool) -> Iterator[Import]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (Import(name.name, certain) for name in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*parents, *([name] if name else [])])
                yield Import(base, certain)
                yield from (Import(f"{base}.{one.name}", certain) for one in names)
            case ast.If(test=test, orelse=otherwise) if "TYPE_CHECKING" in ast.dump(test):
                yield from _imports(otherwise, package, certain=certain)
            case _:
                inside = certain and isinstance(node, ast.ClassDef | ast.With)
                yield from _imports(list(_nested(node)), package, certain=inside)


def names_of(package: str, tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module reads in a package: those that it imports, and attributes of the package."""
    imported = list(_imports(tree.body, "", certain=False))
    yield from (one.module.split(".")[1] for one in imported if one.module.startswith(f"{package}."))
    nodes = list(ast.walk(tree))
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names if alias.name == package]
    names = {alias.asname or alias.name for alias in aliases}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
                yield attribute


def _nested(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly inside a statement, its ``except`` and ``case`` blocks included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


NUMPY_ITSELF = ("numpy", "numpy.matlib")
"""The first imports each of its packages when it is read, also the second."""


class Walk:
    """Follows imports from module to module, each module once."""

    def __init__(self, path: tuple[Path, ...], own: list[str], named: list[tuple[str, str]], *, only_certain: bool) -> None:
        self.reached: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.numpy: dict[str, str] = {}
        self._path = path
        self._own = own
        self._named = named
        self._only_certain = only_certain

    def follow(self, roots: list[str]) -> None:
        todo = [("the program", Import(root, certain=True)) for root in roots]
        while todo:
            importer, wanted = todo.pop()
            if self._only_certain and not wanted.certain and importer.split(".")[0] not in self._own:
                continue
            todo.extend((wanted.module, Import(module, certain=True)) for by, module in self._named if by == wanted.module)
            for module, file in self._new(importer, wanted):
                found = read(module, file)
                todo.extend((module, one) for one in found.imports)
                if module not in NUMPY_ITSELF:
                    self.numpy |= dict.fromkeys(found.numpy, module)

    def _new(self, importer: str, wanted: Import) -> Iterator[tuple[str, Path]]:
        """Yield the source files of a module and of the packages above it that were not reached before."""
        parts = wanted.module.split(".")
        for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if name in self.reached:
                continue
            file = find(self._path, name)
            if file is None:
                # A package may create modules while it is imported, as six does.
                if name == parts[0] not in sys.stdlib_module_names:
                    self.missing[name] = importer
                return
            self.reached[name] = importer
            if file.suffix == ".py":
                yield name, file


def main() -> None:
    request = json.load(sys.stdin)
    path, roots = tuple(Path(folder) for folder in request["path"]), request["roots"]
    every, certain = (Walk(path, request["own"], request["named"], only_certain=only) for only in (False, True))
    every.follow(roots)
    certain.follow(roots)
    json.dump({"reached": every.reached, "missing": certain.missing, "numpy": every.numpy}, sys.stdout)


if __name__ == "__main__":
    main()
