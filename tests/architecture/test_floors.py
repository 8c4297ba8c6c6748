"""What import-linter cannot say: which modules of the standard library and beyond a room may use.

The floors themselves are contracts in pyproject.toml, which `make check` runs.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "shared" / "spass"

# What reads a clock, makes randomness or touches the world: an agent kind goes through its context instead.
WORLDLY = frozenset({"time", "datetime", "random", "secrets", "uuid", "os", "io", "pathlib", "socket", "subprocess", "threading"})


def imports(file: Path) -> Iterator[str]:
    """The absolute names of everything a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=0) if module:
                yield module
            case ast.ImportFrom():
                yield "."


def modules(room: str) -> list[Path]:
    found = sorted((LIBRARY / room).rglob("*.py"))
    assert found, f"the room {room} is empty"
    return found


@pytest.mark.parametrize("file", modules("core"), ids=lambda file: file.stem)
def test_core_imports_the_standard_library_and_nothing_else(file: Path) -> None:
    foreign = {name for name in imports(file) if name.split(".")[0] not in {*sys.stdlib_module_names, "spass"}}
    assert not foreign
    assert {name for name in imports(file) if name.startswith("spass")} <= {
        name for name in imports(file) if name.startswith("spass.core")
    }


@pytest.mark.parametrize("file", modules("agents/kinds"), ids=lambda file: file.stem)
def test_an_agent_kind_knows_core_and_its_context_and_no_clock(file: Path) -> None:
    ours = {name for name in imports(file) if name.split(".")[0] == "spass"}
    assert all(name.startswith(("spass.core", "spass.agents.kinds")) for name in ours)
    others = {name.split(".")[0] for name in imports(file)} - {"spass"}
    assert others <= sys.stdlib_module_names
    assert not others & WORLDLY


@pytest.mark.parametrize("top", ["shared", "functions", "infra", "local"])
def test_nothing_is_imported_relatively(top: str) -> None:
    """One name for one module, so that the contracts and a reader's search find every use."""
    assert not [str(file) for file in (ROOT / top).rglob("*.py") if "." in imports(file)]


def test_no_module_is_called_what_holds_everything() -> None:
    names = {file.stem for top in ("shared", "functions", "infra", "local") for file in (ROOT / top).rglob("*.py")}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_impl"}
