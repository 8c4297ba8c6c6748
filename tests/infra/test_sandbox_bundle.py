"""The code of the sandbox's function, built as a deployment builds it, runs code with the standard library alone."""

import ast
import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from infra import bundling
from infra.bundling import LAMBDA
from infra.constructs.layer import SANDBOX
from infra.interpreter import find_interpreter

COMPILER: Final = find_interpreter(LAMBDA.python) or Path(sys.executable)
TOKEN: Final = "0123456789abcdef" * 2
# Stands in for Lambda's runtime: imports the handler from the folder of the asset, and calls it once.
RUNTIME: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
import function
class Context:
    def get_remaining_time_in_millis(self): return 60_000
print(json.dumps(function.handler(json.load(sys.stdin), Context())))
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder with the function's code, which cannot be changed."""
    folder = tmp_path_factory.mktemp("sandbox") / "task"
    bundling.sandbox_code(folder, source=SANDBOX, compiler=COMPILER)
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in paths:
        path.chmod(0o755)


def invoke(task: Path, event: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Call the handler in an interpreter that finds no packages."""
    command = [str(COMPILER), "-I", "-S", "-c", RUNTIME, str(task)]
    environment = {"TMPDIR": str(scratch)}
    process = subprocess.run(
        command, input=json.dumps(event), env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def test_the_deployed_function_runs_code_and_leaves_nothing(task: Path, tmp_path: Path) -> None:
    code = "open('note', 'w').write('x')\nprint(sum(int(number) for number in numbers))"
    cell = {"code": code, "queries": False, "tools": [], "max_output_chars": 100, "time": 1.8e9}
    limits = {"cpu_cell": 5, "cpu_turn": 10, "wall_cell": 10, "memory": 512 * 2**20, "waits": 64}
    start = {"token": TOKEN, "started": 1.8e9, "limits": limits, "variables": {"numbers": ["40", "2"]}, "cells": [cell]}
    packed = base64.b64encode(zlib.compress(json.dumps({**start, "journal": [[]]}).encode())).decode()
    answer = invoke(task, {"start": packed, "token": TOKEN, "cell_cpu": 5, "cell_wall": 10}, tmp_path)
    lines = zlib.decompress(base64.b64decode(answer["lines"])).decode().splitlines()
    *_, (token, result) = [line.split(" ", 1) for line in lines]
    assert (token, answer["fault"]) == (TOKEN, None), lines
    assert (json.loads(result)["cell"]["output"], json.loads(result)["cell"]["error"]) == ("42\n", None)
    assert list(tmp_path.iterdir()) == []


def test_an_event_without_code_starts_nothing(task: Path, tmp_path: Path) -> None:
    assert invoke(task, {}, tmp_path) == {}


def test_the_deployed_function_is_one_handler_and_one_child(task: Path) -> None:
    assert {path.name for path in task.iterdir()} == {"function.py", "child", "__pycache__"}
    modules = {path.relative_to(task).as_posix() for path in task.rglob("*.py")}
    assert modules == {"function.py", *(f"child/{path.name}" for path in (SANDBOX / "child").glob("*.py"))}
    assert len([*task.rglob("*.pyc")]) == len(modules)


def test_the_deployed_function_imports_the_standard_library_alone(task: Path) -> None:
    imported = {
        name.partition(".")[0]
        for path in task.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in _imported(node)
        if not name.startswith("spass.sandbox.child")
    }
    assert imported - {*sys.stdlib_module_names} <= {"_typeshed"}, "type checkers alone import that one"


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [one.name for one in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case _:
            return []
