"""Rules that import-linter cannot express: the modules of the standard library and of packages that a room may import.

The floors themselves are contracts in pyproject.toml, which `make check` runs.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "shared" / "spass"

# Modules that read a clock, generate random numbers or do I/O. An agent kind uses its context instead.
IMPURE = frozenset({"time", "datetime", "random", "secrets", "uuid", "os", "io", "pathlib", "socket", "subprocess", "threading"})


RESPONSE_MODELS = {"spass.agents.responses", "spass.agents.parameters", "spass.tools.responses", "spass.tenancy.response_model"}


def imports(file: Path) -> Iterator[str]:
    """Yield the absolute name of every import of a file, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=0) if module:
                yield module
            case ast.ImportFrom():
                yield "."


def modules(room: str) -> list[Path]:
    files = sorted((LIBRARY / room).rglob("*.py"))
    assert files, f"the room {room} is empty"
    return files


@pytest.mark.parametrize("file", modules("core"), ids=lambda file: file.stem)
def test_core_imports_only_the_standard_library(file: Path) -> None:
    foreign = {name for name in imports(file) if name.split(".")[0] not in {*sys.stdlib_module_names, "spass"}}
    assert not foreign
    assert {name for name in imports(file) if name.startswith("spass")} <= {
        name for name in imports(file) if name.startswith("spass.core")
    }


@pytest.mark.parametrize("file", modules("agents/kinds"), ids=lambda file: file.stem)
def test_an_agent_kind_imports_only_core_its_context_and_pure_modules(file: Path) -> None:
    ours = {name for name in imports(file) if name.split(".")[0] == "spass"}
    assert all(name.startswith(("spass.core", "spass.agents.kinds")) for name in ours)
    others = {name.split(".")[0] for name in imports(file)} - {"spass"}
    assert others <= sys.stdlib_module_names
    assert not others & IMPURE


@pytest.mark.parametrize("file", [*modules("sdk"), *modules("cli")], ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_client_imports_only_httpx_core_and_response_models(file: Path) -> None:
    found = set(imports(file))
    assert {name for name in found if name.split(".")[0] == "spass" and not name.startswith(("spass.sdk", "spass.cli"))} <= (
        RESPONSE_MODELS | {name for name in found if name.startswith("spass.core.")}
    )
    assert {name.split(".")[0] for name in found} - sys.stdlib_module_names <= {"spass", "httpx", "pydantic"}


@pytest.mark.parametrize("top", ["shared", "functions", "infra", "local"])
def test_no_import_is_relative(top: str) -> None:
    """With one name for each module, the contracts and a text search find every use."""
    assert not [str(file) for file in (ROOT / top).rglob("*.py") if "." in imports(file)]


def test_no_module_has_a_catch_all_name() -> None:
    names = {file.stem for top in ("shared", "functions", "infra", "local") for file in (ROOT / top).rglob("*.py")}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_impl"}
