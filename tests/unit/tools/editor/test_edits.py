"""Real edits by Aider in a child process, with the answers of a scripted model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import pytest

from spass.core.messages import Message, Role
from spass.tools.base import ToolError
from tests.sampling import sampled
from tests.unit.tools.editor.scripted import PACKAGES, Scripted, block, listing

pytestmark = pytest.mark.anyio

MAIN = "import sys\n\n\ndef main():\n    return 1\n"
DOCUMENTED = 'import sys\n\n\ndef main():\n    """Return one."""\n    return 1\n'


async def test_a_block_changes_the_lines_that_it_names(tmp_path: Path) -> None:
    answer = "Here it is.\n\n" + block("src/main.py", "def main():\n", 'def main():\n    """Return one."""\n')
    scripted = Scripted(tmp_path, [answer])
    result = await scripted.edit({"src/main.py": MAIN, "src/other.py": "x = 1\n"}, read_only={"README.md": "# Read me\n"})
    assert result.files == {"src/main.py": DOCUMENTED}
    assert result.answer == answer.strip()
    assert len(scripted.asked) == 1
    assert scripted.left() == []


async def test_a_listing_replaces_a_file(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, [listing("src/main.py", DOCUMENTED)])
    result = await scripted.edit({"src/main.py": MAIN, "src/other.py": "x = 1\n"}, format="whole")
    assert result.files == {"src/main.py": DOCUMENTED}


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_the_model_sees_the_message_and_every_file(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    scripted = Scripted(tmp_path, ["I would rather not."])
    result = await scripted.edit(
        {"a/main.py": MAIN}, read_only={"b.txt": "Read this."}, message="/run Say {0} please", format=format
    )
    assert result.files == {}
    assert result.answer == "I would rather not."
    messages = scripted.asked[0]
    assert messages[0].role is Role.SYSTEM
    assert any("a/main.py\n```\n" + MAIN + "```\n" in message.content for message in messages)
    assert any("READ ONLY" in message.content and "b.txt\n```\nRead this.\n```\n" in message.content for message in messages)
    assert messages[-1].content.startswith("/run Say {0} please")
    assert "Platform" not in scripted.prompt()


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_equal_edits_have_equal_prompts(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    files = {f"file{number}.txt": f"{number}\n" for number in range(12)}
    scripted = Scripted(tmp_path, ["No."])
    for _ in range(2):
        await scripted.edit(files, read_only={f"other{number}.txt": "" for number in range(12)}, format=format)
    assert scripted.asked[0] == scripted.asked[1]


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_ten_files_change_at_once(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    files = {f"folder {number}/file.txt": "one\ntwo\n" for number in range(10)}
    make = {"diff": lambda path: block(path, "two\n", f"2 {path}\n"), "whole": lambda path: listing(path, f"one\n2 {path}\n")}
    result = await Scripted(tmp_path, ["\n".join(make[format](path) for path in files)]).edit(files, format=format)
    assert result.files == {path: f"one\n2 {path}\n" for path in files}


@pytest.mark.parametrize(
    ("format", "answer"), [("diff", block("new/file.py", "", "x = 1\n")), ("whole", listing("new/file.py", "x = 1\n"))]
)
async def test_a_named_file_that_is_absent_is_created(tmp_path: Path, format: Literal["diff", "whole"], answer: str) -> None:
    result = await Scripted(tmp_path, [answer]).edit({}, create=("new/file.py", "new/untouched.py"), format=format)
    assert result.files == {"new/file.py": "x = 1\n"}


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_a_proposed_file_is_created_only_with_permission(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    make = {"diff": lambda path: block(path, "", "x\n"), "whole": lambda path: listing(path, "x\n")}
    change = {"diff": block("main.py", "import sys\n", "import os\n"), "whole": listing("main.py", "import os\n")}
    answer = change[format] + make[format]("docs/new.md")
    scripted = Scripted(tmp_path, [answer], may_edit=lambda path: path.startswith("docs/"))
    result = await scripted.edit({"main.py": MAIN}, format=format)
    assert set(result.files) == {"main.py", "docs/new.md"}
    assert result.files["docs/new.md"] == "x\n"
    assert set(scripted.proposed) == {"docs/new.md"}


async def test_an_absent_search_text_is_corrected_by_the_model(tmp_path: Path) -> None:
    def correct(messages: Sequence[Message]) -> str:
        assert "failed to exactly match" in messages[-1].content
        return block("main.py", "import sys\n", "import os\n")

    scripted = Scripted(tmp_path, [block("main.py", "import re\n", "import os\n"), correct])
    result = await scripted.edit({"main.py": MAIN})
    assert result.files == {"main.py": MAIN.replace("sys", "os")}
    assert any("correct" in line for line in scripted.progress)


UNCLEAR: Final = [
    ("diff", block("main.py", "import re\n", "import os\n"), "failed to exactly match"),
    ("diff", block("main.py", "import sys\n", "import os\n")[:-20], "REPLACE"),
    ("diff", block("main.py", "import sys\n=======\n", "x\n"), "may have it"),
    ("diff", block("other.py", "import sys\n", "import os\n"), "only these files: main.py"),
    ("diff", block("../x", "", "evil\n"), "only these files: main.py"),
    ("diff", block("/tmp/x", "", "evil\n"), "only these files: main.py"),
    ("diff", block("../x", "import sys\n", "evil\n"), "only these files: main.py"),
    ("diff", block("notes.md", "import sys\n", "evil\n"), "only these files: main.py"),
    ("whole", listing("main.py", "import os\n")[:-5], "does not end with"),
    ("whole", listing("../x", "evil\n"), "is not the name of a file"),
    ("whole", listing("/tmp/main.py", "evil\n"), "is not the name of a file"),
    ("whole", listing("../main.py", "evil\n"), "is not the name of a file"),
    ("whole", listing("notes.md", "evil\n"), "is not the name of a file"),
    ("whole", "```\nevil\n```\n", "is not the name of a file"),
    ("whole", listing("main.py", "import os\n```sh\nls\n```\n"), "contains a line that begins with ```|not between ```"),
    ("whole", listing("main.py", "import os\n```\nls\n```\n"), "contains a line that begins with ```|not between ```"),
]


@pytest.mark.parametrize(("format", "answer", "reason"), sampled(UNCLEAR, 4))
async def test_an_unclear_edit_is_asked_for_again_and_then_fails(
    tmp_path: Path, format: Literal["diff", "whole"], answer: str, reason: str
) -> None:
    scripted = Scripted(tmp_path, [answer])
    with pytest.raises(ToolError, match=reason) as caught:
        await scripted.edit({"main.py": MAIN}, read_only={"notes.md": "import sys\n"}, format=format)
    assert caught.value.code == "edit_failed"
    assert len(scripted.asked) == 4
    assert scripted.left() == []


async def test_an_answer_with_2000_new_files_changes_the_file_that_it_may_change(tmp_path: Path) -> None:
    new_files = "".join(block(f"new/{number:04}.py", "", "x = 1\n") for number in range(2000))
    scripted = Scripted(tmp_path, [new_files + block("main.py", "import sys\n", "import os\n")])
    result = await scripted.edit({"main.py": MAIN})
    assert result.files == {"main.py": MAIN.replace("sys", "os")}
    assert result.answer.endswith("new/0018.py, new/0019.py and 1980 others]")
    assert len(scripted.proposed) <= 200


async def test_the_permitted_part_of_an_edit_is_made(tmp_path: Path) -> None:
    answer = block("main.py", "import sys\n", "import os\n") + block("../x", "", "evil\n") + block("/tmp/x", "", "evil\n")
    result = await Scripted(tmp_path, [answer]).edit({"main.py": MAIN})
    assert result.files == {"main.py": MAIN.replace("sys", "os")}
    assert result.answer.endswith("[Not applied, because these files may not be edited: ../x, /tmp/x]")


@pytest.mark.parametrize("format", ["diff", "whole"])
async def test_an_edit_of_similar_names_changes_no_other_file(tmp_path: Path, format: Literal["diff", "whole"]) -> None:
    names = ["main2.py", "src/main_test.py", "mains.py", "tests/main.py", "config/main.py", "main.p"]
    make = {"diff": lambda name: block(name, "x = 1\n", "x = 2\n"), "whole": lambda name: listing(name, "x = 2\n")}
    answer = "\n".join(make[format](name) for name in names)
    files = {"main.py": "x = 1\n", "src/main.py": "x = 1\n"}
    with pytest.raises(ToolError) as caught:
        await Scripted(tmp_path, [answer]).edit(files, format=format)
    assert caught.value.code == "edit_failed"


async def test_a_name_without_its_folder_is_taken_only_if_one_file_has_it(tmp_path: Path) -> None:
    answer = [block("main.py", "x = 1\n", "x = 2\n")]
    result = await Scripted(tmp_path, answer).edit({"b/main.py": "x = 1\n", "other.py": ""})
    assert result.files == {"b/main.py": "x = 2\n"}
    with pytest.raises(ToolError, match="only these files"):
        await Scripted(tmp_path, answer).edit({"a/main.py": "x = 1\n", "b/main.py": "x = 1\n"})


async def test_the_folder_of_the_prompts_example_is_ignored(tmp_path: Path) -> None:
    result = await Scripted(tmp_path, [listing("path/to/main.py", "x = 2\n")]).edit({"main.py": "x = 1\n"}, format="whole")
    assert result.files == {"main.py": "x = 2\n"}


async def test_of_two_places_the_first_is_changed_as_the_prompt_says(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, [block("a.txt", "x\n", "y\n")])
    result = await scripted.edit({"a.txt": "x\nx\n"})
    assert "replace the first match" in scripted.prompt()
    assert result.files == {"a.txt": "y\nx\n"}


async def test_an_example_command_beside_a_listing_is_not_a_file(tmp_path: Path) -> None:
    answer = listing("main.py", "import os\n") + "\nRun it with `main.py`:\n\n```bash\npython main.py\n```\n"
    result = await Scripted(tmp_path, [answer], may_edit=lambda _: True).edit({"main.py": MAIN}, format="whole")
    assert result.files == {"main.py": "import os\n"}


async def test_a_file_with_every_fence_is_still_edited(tmp_path: Path) -> None:
    text = "```\n````\n<source>\n<code>\n<pre>\n<codeblock>\n<sourcecode>\n<file-0>\nlast\n"
    changed = text.replace("last", "least")
    scripted = Scripted(tmp_path, [listing("a.md", changed, ("<file-1>", "</file-1>"))])
    result = await scripted.edit({"a.md": text}, format="whole")
    assert result.files == {"a.md": changed}


async def test_a_file_over_four_megabytes_is_refused(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, [listing("a.txt", "x" * 5_000_000 + "\n")])
    with pytest.raises(ToolError, match="larger than 4194304 bytes"):
        await scripted.edit({"a.txt": "x\n"}, format="whole")
    assert scripted.left() == []


async def test_an_absent_search_text_in_a_large_file_fails_fast(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    search = "".join(f"row {number}\n" for number in range(200))
    with pytest.raises(ToolError, match="failed to exactly match"):
        await Scripted(tmp_path, [block("a.txt", search, "x\n")]).edit({"a.txt": text}, seconds=15)


async def test_files_that_configure_tools_elsewhere_are_only_texts(tmp_path: Path) -> None:
    evil = "raise SystemExit('executed')\n"
    planted = {
        **dict.fromkeys(("sitecustomize.py", "litellm.py", "yaml.py", "aider/__init__.py", "spass/__init__.py"), evil),
        ".env": "PYTHONPATH=.\n",
        ".aider.conf.yml": "model: evil\nlint-cmd: touch executed\n",
        ".aider.model.settings.yml": "- name: spass\n  edit_format: whole\n",
    }
    files = {folder + path: text for folder in ("", "src/", "home/deep/") for path, text in planted.items()}
    answer = "".join(block(path, text, text + "# checked\n") for path, text in files.items())
    result = await Scripted(tmp_path, [answer]).edit(files)
    assert result.files == {path: f"{text}# checked\n" for path, text in files.items()}


async def test_an_editor_without_packages_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.tools.editor.scripted.PACKAGES", tmp_path)
    with pytest.raises(ToolError, match="not installed") as caught:
        await Scripted(tmp_path, ["No."]).edit({"main.py": MAIN})
    assert caught.value.code == "tool_unavailable"


def test_the_packages_are_installed() -> None:
    assert (PACKAGES / "aider").is_dir(), "run `make dev`"
