"""`make run` begins with a small workspace for the directors, and never writes over what became of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from local.example_workspace import FILES, TENANT, WORKSPACE, create_example_workspace
from spass.core.time import Deadline
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.web.services import Services
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import parse_path
from tests.functions.gateway import write_operators_files


@pytest.fixture
def services(tmp_path: Path) -> Services:
    return ScriptedServices(write_operators_files(tmp_path), ScriptedModel(), MemoryAws())


def start(services: Services, *changes: Callable[[], Awaitable[Any]]) -> tuple[int, dict[str, bytes]]:
    """Start the gateway, and again after each change. Return the newest version and its files."""

    async def run() -> tuple[int, dict[str, bytes]]:
        await create_example_workspace(services)
        for change in changes:
            await change()
            await create_example_workspace(services)
        store = services.aws.for_tenant(TENANT)
        at = await services.workspaces.open(store, WORKSPACE).newest()
        bodies = await services.workspaces.open(store, WORKSPACE).read_many(at, at.tree.files) if at.tree.files else {}
        return at.version, {str(path): body for path, body in bodies.items()}

    return asyncio.run(run())


def test_the_first_start_makes_one_version_with_the_example(services: Services) -> None:
    assert start(services) == (1, {path: text.encode() for path, text in FILES.items()})
    assert {"README.md", "src/main.py", "src/util.py"} < {*FILES}


def test_the_example_is_a_program_that_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(FILES["src/util.py"], names)
    exec(FILES["src/main.py"].replace("from util import greet", ""), names)
    monkeypatch.setattr("sys.argv", ["main.py", "Ada"])
    names["main"]()
    assert capsys.readouterr().out == "Hello, Ada!\n"


def test_a_later_start_keeps_what_was_changed_and_what_was_deleted(services: Services) -> None:
    store, path = services.aws.for_tenant(TENANT), parse_path("README.md")

    async def write() -> None:
        change = Change.of({path: b"Mine"})
        await services.workspaces.open(store, WORKSPACE).commit(change, Author(), Deadline.after(5))

    async def delete() -> None:
        await services.workspaces.open(store, WORKSPACE).delete(Deadline.after(5))

    version, files = start(services, write)
    assert (version, files["README.md"]) == (2, b"Mine")
    assert start(services, delete) == (2, {})
