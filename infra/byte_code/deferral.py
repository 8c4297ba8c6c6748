"""Let pydantic build the models of some modules when a program first uses them, and not when it imports the module."""

import ast
import copy
from typing import Final

DEFERRED: Final = frozenset({"fastapi.openapi.models"})
"""Every import of FastAPI imports this module, and only the function that describes the API uses its models."""
_BASE: Final = "BaseModel"
_BUILD: Final = "model_rebuild"


def defer(tree: ast.Module) -> ast.Module:
    """Return the module with the option ``defer_build`` for each model, and without the statements that build one."""
    deferred = copy.copy(tree)
    deferred.body = [_defer_class(node) if isinstance(node, ast.ClassDef) else node for node in tree.body if not _builds(node)]
    return deferred


def _defer_class(node: ast.ClassDef) -> ast.ClassDef:
    """Models inherit the option, so that only those without another model as their base need it."""
    if not any(isinstance(base, ast.Name) and base.id == _BASE for base in node.bases):
        return node
    changed = copy.copy(node)
    option = ast.keyword(arg="defer_build", value=ast.Constant(value=True))
    changed.keywords = [*node.keywords, ast.fix_missing_locations(ast.copy_location(option, node))]
    return changed


def _builds(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attribute), args=[], keywords=[])):
            return attribute == _BUILD
        case _:
            return False
