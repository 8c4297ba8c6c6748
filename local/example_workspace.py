"""The workspace ``default`` of the tenant ``demo``, with a small project for the directors to work on."""

from collections.abc import Mapping
from typing import Final

from spass.core.ids import TenantId, UserId, WorkspaceId
from spass.core.time import Deadline
from spass.web.services import Services
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import parse_path

TENANT: Final = TenantId("demo")
WORKSPACE: Final = WorkspaceId("default")
_SECONDS: Final = 20.0
_AUTHOR: Final = Author(user=UserId("make-run"), message="The example project of make run")

FILES: Final[Mapping[str, str]] = {
    "README.md": """# Greeter

A small program that greets people. Start it with `python src/main.py Ada`.
""",
    "docs/guide.md": """# Guide

`src/main.py` reads a name from the command line. `src/util.py` makes the greeting.
""",
    "docs/old-notes.md": """# Old notes

Nothing here is true any more.
""",
    "src/main.py": """import sys

from util import greet


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "World"
    print(greet(name))


if __name__ == "__main__":
    main()
""",
    "src/util.py": """def greet(name: str) -> str:
    return f"Hello, {name}!"
""",
    "tests/test_util.py": """from util import greet


def test_it_greets_by_name() -> None:
    assert greet("Ada") == "Hello, Ada!"
""",
}


async def create_example_workspace(services: Services) -> None:
    """Create the workspace if it never existed. Later starts leave it as it is, also if it was changed or deleted.

    Raises:
        StorageUnavailable: the emulated AWS does not answer.
    """
    store, workspaces = services.aws.for_tenant(TENANT), services.workspaces
    if (await workspaces.open(store, WORKSPACE).newest()).version:
        return
    files = {parse_path(path): text.encode() for path, text in FILES.items()}
    change = Change.of(files, expected=dict.fromkeys(files))
    await workspaces.open(store, WORKSPACE).commit(change, _AUTHOR, Deadline.after(_SECONDS))
