"""The stand-in and the real Aider together: the file on the other side has the change that the message asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import pytest

from local.example_workspace import FILES
from local.standin.wire import complete
from spass.core.messages import Message
from tests.unit.tools.editor.scripted import Scripted

pytestmark = pytest.mark.anyio

Format = Literal["diff", "whole"]
MAIN: Final = FILES["src/main.py"]
DOCUMENTED: Final = MAIN.replace("None:\n", 'None:\n    """Run the program."""\n')
PAGE: Final = "# Use\n\n```sh\nmake run\n```\n\nThe end\n"
POUR: Final = "class Tea:\n    @property\n    def pour(\n        self,\n    ) -> str:\n        return ''"
IN_ONE_LINE: Final = "def main(): pass\n"
JOB_CARD: Final = "# Job card: Document\n\n## Task\n\nAdd a docstring to main()\n\n## Files\n\n- src/main.py"


def answer(messages: Sequence[Message]) -> str:
    return complete({"messages": [{"role": one.role.value, "content": one.content} for one in messages]}).content or ""


@pytest.mark.parametrize("form", ["diff", "whole"])
@pytest.mark.parametrize(
    ("message", "path", "before", "after"),
    [
        ("Add a docstring to main()", "src/main.py", MAIN, DOCUMENTED),
        (JOB_CARD, "src/main.py", MAIN, DOCUMENTED),
        ("Add a docstring to pour()", "tea.py", POUR, POUR.replace("str:\n", 'str:\n        """Pour."""\n')),
        ('Replace "World" with "Europe"', "src/main.py", MAIN, MAIN.replace("World", "Europe")),
        ("Replace `The end` with `Done` in docs/use.md", "docs/use.md", PAGE, PAGE.replace("The end", "Done")),
        ('Append "More" to docs/use.md', "docs/use.md", PAGE, f"{PAGE}More\n"),
        ("Add a section about testing to docs/use.md", "docs/use.md", PAGE, f"{PAGE}\n## Testing\n\nTo be written.\n"),
    ],
)
async def test_an_edit_changes_what_the_message_names(
    tmp_path: Path, form: Format, message: str, path: str, before: str, after: str
) -> None:
    result = await Scripted(tmp_path, [answer]).edit({path: before}, format=form, message=message)
    assert {name: text.rstrip("\n") for name, text in result.files.items()} == {path: after.rstrip("\n")}


@pytest.mark.parametrize("form", ["diff", "whole"])
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Create docs/plan.md", "# Plan\n"),
        ("Create docs/plan.md with the text `on: push`", "on: push\n"),
        ("Add a section about the budget to docs/plan.md", "## Budget\n\nTo be written.\n"),
    ],
)
async def test_a_new_file_is_written(tmp_path: Path, form: Format, message: str, text: str) -> None:
    result = await Scripted(tmp_path, [answer]).edit({}, format=form, create=("docs/plan.md",), message=message)
    assert result.files == {"docs/plan.md": text}


@pytest.mark.parametrize("before", [DOCUMENTED, IN_ONE_LINE, "def main(:\n", "x = 1\n"])
async def test_a_docstring_that_is_there_or_has_no_place_is_not_added(tmp_path: Path, before: str) -> None:
    result = await Scripted(tmp_path, [answer]).edit({"src/main.py": before}, message="Add a docstring to main()")
    assert not result.files
    assert "do not see what to change" in result.answer


async def test_a_complaint_of_aider_gets_the_same_edit_again(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, ["src/main.py\n```\n<<<<<<< SEARCH\nnowhere\n=======\nx\n>>>>>>> REPLACE\n```", answer])
    result = await scripted.edit({"src/main.py": MAIN}, message="Add a docstring to main()")
    assert (result.files, len(scripted.asked)) == ({"src/main.py": DOCUMENTED}, 2)
