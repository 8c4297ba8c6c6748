"""The name of a test says what it asserts, and a reader takes it in at a glance."""

import ast
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
MAX_CHARACTERS: Final = 79


def test_names_of_tests_have_under_80_characters() -> None:
    defined = [
        (str(file.relative_to(TESTS)), node.name)
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len(defined) > 1000
    assert [(file, name) for file, name in defined if len(name) > MAX_CHARACTERS] == []
