"""Hostile paths in every argument of ``aider_edit``: an error that the model reads, and nothing is executed or written."""

import shlex

import pytest

from spass.core.errors import InvalidPath
from spass.workspaces.paths import parse_folder
from tests.hostile_paths import SENDABLE
from tests.unit.tools.editor.edit_harness import EditHarness, error_of

pytestmark = pytest.mark.anyio

PATHS = [path for path in SENDABLE if len(path) < 10_000]


@pytest.fixture
async def harness() -> EditHarness:
    harness = EditHarness()
    await harness.files.write({"src/main.py": b"x = 1\n", "README.md": b"# Demo\n"})
    return harness


async def assert_nothing_happened(harness: EditHarness) -> None:
    assert await harness.version() == 1
    assert not harness.editor.requests
    assert not harness.model.requests


@pytest.mark.parametrize("argument", ["files", "read_only_files"])
async def test_a_hostile_path_is_refused_as_a_file_of_an_edit(harness: EditHarness, argument: str) -> None:
    codes = {}
    for path in PATHS:
        arguments = {"message": "Edit.", "files": ["src/main.py"], argument: ["README.md", path]}
        codes[path] = error_of(await harness.run(arguments))[0]
    assert len(codes) >= 500
    assert {path: code for path, code in codes.items() if code != "invalid_path"} == {}
    await assert_nothing_happened(harness)


@pytest.mark.parametrize("command", ["/git rm {}", "/git mv README.md {}", "/git restore --source=1 -- {}", "/git show 1:{}"])
async def test_a_hostile_path_is_refused_in_a_command(harness: EditHarness, command: str) -> None:
    """A path with a character that a shell would interpret is refused before it is read. A message cannot hold NUL, and ``.``
    is the whole workspace as for git.
    """
    codes = {}
    for path in PATHS:
        if not is_folder(path) and "\0" not in path and path != ".":
            codes[path] = error_of(await harness.call(command.format(shlex.quote(path))))[0]
    assert len(codes) >= 500
    assert {path: code for path, code in codes.items() if code not in {"invalid_path", "command_not_allowed"}} == {}
    assert list(codes.values()).count("invalid_path") > 300
    await assert_nothing_happened(harness)


def is_folder(path: str) -> bool:
    """Return True if a command may read the path as a folder: some are paths with a slash at the end."""
    try:
        parse_folder(path)
    except InvalidPath:
        return False
    return True
