"""Compile the text of a cell."""

from __future__ import annotations

import _ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ast import Module
    from types import CodeType


def compile_cell(code: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """Return the statements of a cell as code, and separately its last statement if that is an expression.

    Raises:
        SyntaxError: the code is not Python.
        ValueError: it contains a null character or half of a surrogate pair.
        MemoryError: it is nested too deeply for the parser.
        RecursionError: it is nested too deeply for the compiler.
    """
    try:
        tree: Module = compile(code, filename, "exec", _ast.PyCF_ONLY_AST | 0, dont_inherit=True)
    except (RecursionError, MemoryError):
        return compile(code, filename, "exec", dont_inherit=True), None  # the compiler alone can go deeper
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, _ast.Expr):
        return compile(tree, filename, "exec", dont_inherit=True), None
    del tree.body[-1]
    expression = compile(_ast.Expression(last.value), filename, "eval", dont_inherit=True)
    return compile(tree, filename, "exec", dont_inherit=True), expression
