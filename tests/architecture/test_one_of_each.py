"""One class joins the fragments of tool calls, the driver alone performs model calls and tool calls, and one loop of the kinds
asks for both"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "shared" / "spass"

# Neither is part of the gateway: the doubles of tests, and the client, which prints the calls of a stream.
OUTSIDE = ("testing/",)

MODEL_CALLS = frozenset({"chat", "perform"})
TOOL_CALLS = frozenset({"execute", "execute_all", "run_all", "call_tools"})


def is_arguments(node: ast.AST) -> bool:
    """Return True for ``x.arguments`` and ``x["arguments"]``."""
    match node:
        case ast.Attribute(attr="arguments") | ast.Subscript(slice=ast.Constant(value="arguments")):
            return True
    return False


def values(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below ``node``, except for the names of called methods."""
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and child is node.func:
            yield from values(child)
        else:
            yield child
            yield from values(child)


def joins_fragments(tree: ast.AST) -> bool:
    """Return whether the code adds pieces of arguments to one another: ``+``, ``+=``, or a list that is joined."""
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if is_arguments(left) or is_arguments(right):
                return True
            case ast.AugAssign(target=target, op=ast.Add(), value=value) if is_arguments(target) or is_arguments(value):
                return True
            case ast.Call(func=ast.Attribute(attr="append" | "join" | "extend"), args=args):
                if any(is_arguments(value) for argument in args for value in (argument, *values(argument))):
                    return True
    return False


def names_called(tree: ast.AST) -> set[str]:
    return {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}


def calls_models_and_tools(tree: ast.AST) -> bool:
    return bool(names_called(tree) & MODEL_CALLS and names_called(tree) & TOOL_CALLS)


def results_received(tree: ast.AST) -> int:
    """Return how many yields of the code receive a result, as those of effects do."""
    yields = sum(isinstance(node, ast.Yield) for node in ast.walk(tree))
    return yields - sum(isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield) for node in ast.walk(tree))


def has_tool_loop(tree: ast.AST) -> bool:
    """Return whether a loop performs several effects and reads their results: those of a model call and of tool calls."""
    return any(results_received(node) > 1 for node in ast.walk(tree) if isinstance(node, ast.While | ast.For))


def modules_where(found: Callable[[ast.AST], bool]) -> set[str]:
    files = {str(file.relative_to(LIBRARY)): file for file in LIBRARY.rglob("*.py")}
    return {name for name, file in files.items() if not name.startswith(OUTSIDE) and found(ast.parse(file.read_text()))}


def test_one_class_joins_the_fragments_of_tool_calls() -> None:
    assert modules_where(joins_fragments) == {"models/types.py"}
    tree = ast.parse((LIBRARY / "models/types.py").read_text())
    joining = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and joins_fragments(node)]
    assert joining == ["ReplyBuilder", "_PartialCall"], "the builder and its part for one call"


def test_the_driver_alone_calls_models_and_tools() -> None:
    assert modules_where(calls_models_and_tools) == {"agents/driven_turn.py"}


def test_one_loop_of_the_kinds_calls_models_and_tools() -> None:
    assert modules_where(has_tool_loop) == {"agents/kinds/base.py"}


@pytest.mark.parametrize(
    "code",
    [
        "call = replace(piece, arguments=first.arguments + piece.arguments)",
        'calls[index]["function"]["arguments"] += piece["function"]["arguments"]',
        "parts.setdefault(piece.index, []).append(piece.arguments)",
        'text = "".join(piece.arguments for piece in pieces)',
    ],
)
def test_another_assembler_would_be_found(code: str) -> None:
    assert joins_fragments(ast.parse(code))


@pytest.mark.parametrize(
    "code", ["self.texts.append(self.read.arguments(index, piece))", "size = len(call.name) + len(call.arguments)"]
)
def test_code_that_joins_no_fragments_is_not_an_assembler(code: str) -> None:
    assert not joins_fragments(ast.parse(code))


def test_another_loop_would_be_found() -> None:
    assert calls_models_and_tools(ast.parse("async for _ in calls.chat(request): await toolbox.execute_all(found)"))
    loop = "def f():\n while True:\n  reply = yield Infer(messages)\n  yield ReportStatus('I go on.')"
    assert not has_tool_loop(ast.parse(loop))
    assert has_tool_loop(ast.parse(f"{loop}\n  outcomes = yield CallTools(reply.tool_calls)"))
    assert has_tool_loop(ast.parse(f"{loop}\n  messages += read((yield step))"))
