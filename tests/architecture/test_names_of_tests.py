"""The name of a test is a short sentence that states the assertion."""

import ast
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
MAX_CHARACTERS: Final = 79


def test_names_of_tests_have_under_80_characters() -> None:
    tests = [
        (str(file.relative_to(TESTS)), node.name)
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len(tests) > 1000
    assert [(file, name) for file, name in tests if len(name) > MAX_CHARACTERS] == []
