"""Write the byte code of a folder's modules: ``python -m infra.byte_code FOLDER``, with the interpreter that will run them.

A class with the decorator ``dataclass`` takes 0.5 ms when it is defined, because ``dataclasses`` compiles its methods each time.
In the byte code the methods are written out. The sources in the folder stay as they are, and tracebacks show their lines. A class
that cannot be written out for certain keeps its decorator, and a line of the output names it and the reason.

The models of some modules are built when they are first used: ``deferral`` names these modules.
"""

import ast
import copy
import importlib.util
import marshal
import shutil
import sys
from pathlib import Path
from typing import Final

from infra.byte_code import dataclass_runtime
from infra.byte_code.deferral import DEFERRED, defer
from infra.byte_code.methods import RUNTIME, expand
from infra.byte_code.mirrors import Mirrors
from infra.byte_code.sources import Module, Sources, Unresolved

_RUNTIME_FILE: Final = Path(dataclass_runtime.__file__)
_UNCHECKED_HASH: Final = (0b01).to_bytes(4, "little")  # PEP 552


class Bundle:
    """The modules of a folder, and ``kept``: the classes that keep their decorator, each with the reason."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = Sources(folder)
        self._mirrors = Mirrors(self._sources)
        self.kept: list[str] = []

    def write(self, path: Path) -> None:
        """Write the byte code of the module at ``path``, which is relative to the folder.

        Raises:
            SyntaxError: Python cannot compile it.
        """
        module = self._sources.module(path)
        code = compile(self._expand(module), str(path), "exec", dont_inherit=True)
        # Loaded and dumped again, because the marks of shared objects depend on what else refers to them in this process.
        dumped = marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302
        target = Path(importlib.util.cache_from_source(self._folder / path, optimization=""))
        target.parent.mkdir(exist_ok=True)
        source_hash = importlib.util.source_hash(module.source)
        target.write_bytes(importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + source_hash + dumped)

    def _expand(self, module: Module) -> ast.Module:
        tree = defer(module.tree) if module.name in DEFERRED else module.tree
        top = tree.body
        body = [self._expand_class(module, node) if isinstance(node, ast.ClassDef) else node for node in top]
        for node in module.statements():
            if isinstance(node, ast.ClassDef) and node not in module.tree.body and self._is_dataclass(module, node):
                self.kept.append(f"{module.name}.{node.name}: it is not at the top level of the module")
        if body == top:
            return tree
        runtime = ast.Import(names=[ast.alias(name=_RUNTIME_FILE.stem, asname=RUNTIME)])
        first = next(number for number, node in enumerate(body) if not _comes_first(node, number))
        tree = copy.copy(tree)
        tree.body = [*body[:first], ast.fix_missing_locations(runtime), *body[first:]]
        return tree

    def _expand_class(self, module: Module, node: ast.ClassDef) -> ast.ClassDef:
        try:
            decorator = self._mirrors.decorator(module, node)
            return expand(node, decorator, self._mirrors.mirror(module, node)) if decorator else node
        except Unresolved as reason:
            self.kept.append(f"{module.name}.{node.name}: {reason}")
            return node

    def _is_dataclass(self, module: Module, node: ast.ClassDef) -> bool:
        try:
            return self._mirrors.decorator(module, node) is not None
        except Unresolved:
            return True


def _comes_first(node: ast.stmt, number: int) -> bool:
    """Tell whether nothing may precede the statement: the docstring of the module, or an import of ``__future__``."""
    is_docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def main(folder: Path) -> None:
    shutil.copyfile(_RUNTIME_FILE, folder / _RUNTIME_FILE.name)
    bundle = Bundle(folder)
    failures: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        try:
            bundle.write(path.relative_to(folder))
        except SyntaxError as error:
            failures.append(f"{path.relative_to(folder)}: {error}")
    sys.stdout.writelines(f"{line}\n" for line in failures or [f"keeps its decorator: {one}" for one in sorted(bundle.kept)])
    sys.exit(bool(failures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
