"""The stand-in and the real Aider together: the file on the other side has the change that the message asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import pytest

from local.example_workspace import FILES
from local.standin.wire import complete
from spass.core.messages import Message
from tests.unit.tools.editor.scripted import Scripted

Format = Literal["diff", "whole"]
MAIN: Final = FILES["src/main.py"]
PAGE: Final = "# Use\n\n```sh\nmake run\n```\n\nThe end\n"


def answer(messages: Sequence[Message]) -> str:
    return complete({"messages": [{"role": one.role.value, "content": one.content} for one in messages]}).content or ""


@pytest.mark.parametrize("form", ["diff", "whole"])
@pytest.mark.parametrize(
    ("message", "path", "before", "after"),
    [
        ("Add a docstring to main()", "src/main.py", MAIN, MAIN.replace("None:\n", 'None:\n    """Run the program."""\n')),
        ('Replace "World" with "Europe"', "src/main.py", MAIN, MAIN.replace("World", "Europe")),
        ("Delete line 1 of src/main.py", "src/main.py", MAIN, MAIN.replace("import sys\n", "")),
        ('Append "More" to docs/use.md', "docs/use.md", PAGE, f"{PAGE}More\n"),
        ("Add a TODO comment at line 1", "src/main.py", MAIN, f"# TODO: check this.\n{MAIN}"),
    ],
)
@pytest.mark.anyio
async def test_an_edit_changes_what_the_message_names(
    tmp_path: Path, form: Format, message: str, path: str, before: str, after: str
) -> None:
    result = await Scripted(tmp_path, [answer]).edit({path: before}, format=form, message=message)
    assert result.files == {path: after}


@pytest.mark.parametrize("form", ["diff", "whole"])
@pytest.mark.anyio
async def test_a_new_file_is_written(tmp_path: Path, form: Format) -> None:
    result = await Scripted(tmp_path, [answer]).edit({}, format=form, create=("docs/plan.md",), message="Create docs/plan.md")
    assert result.files == {"docs/plan.md": "# Plan\n"}


@pytest.mark.anyio
async def test_a_message_that_asks_for_nothing_changes_nothing(tmp_path: Path) -> None:
    result = await Scripted(tmp_path, [answer]).edit({"src/main.py": MAIN}, message="Make it better.")
    assert not result.files
    assert "do not see what to change" in result.answer
