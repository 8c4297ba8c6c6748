"""mypy reads the types of every module of the CDK that the definition uses. It skips the others, which are most of its 170 MB."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Final

import pytest

from infra.config_files import ROOT

OVERRIDES: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
READ: Final[list[str]] = [module for one in OVERRIDES if one.get("follow_imports") == "normal" for module in one["module"]]


def imported_modules() -> Iterator[str]:
    """Yield the CDK's modules that the definition and its tests import."""
    for file in [ROOT / "app.py", *(ROOT / "infra").rglob("*.py"), *(ROOT / "tests" / "infra").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "aws_cdk":
                yield from (f"aws_cdk.{alias.name}" for alias in node.names if alias.name.startswith("aws_"))
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("aws_cdk."):
                yield node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.startswith("aws_cdk"))


USED: Final = sorted({"aws_cdk", *imported_modules()})


def is_read(module: str) -> bool:
    return module in READ or any(fnmatch(f"{module}.", pattern) for pattern in READ)


@pytest.mark.parametrize("module", USED)
def test_mypy_reads_each_module_that_the_definition_imports_and_its_base_classes(module: str) -> None:
    classes = [one for one in vars(importlib.import_module(module)).values() if isinstance(one, type)]
    modules = {module, *(base.__module__ for one in classes for base in one.__mro__)}
    skipped = {name for name in modules if name.partition(".")[0] == "aws_cdk" and not is_read(name)}
    assert skipped == set(), "add them to the list in pyproject.toml"


def test_mypy_skips_what_the_definition_does_not_use() -> None:
    assert len(USED) > 10
    assert not is_read("aws_cdk.aws_quicksight")
