"""The stand-in answers Aider's prompt with the edit that the message plainly asks for, in the format of the prompt."""

from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.standin.wire import complete
from tests.unit.local.aider_messages import Format, aider_messages, files_after

MAIN: Final = '''"""Greet people."""

import sys


def main() -> None:
    print(greet("World"))


def greet(
    name: str,
    punctuation: str = "!",
) -> str:
    return f"Hello, {name}{punctuation}"


if __name__ == "__main__":
    main()
'''
FORMATS: Final = get_args(Format)


def edit(instruction: str, files: dict[str, str], form: Format = "diff") -> dict[str, str]:
    """Return the files that the stand-in's answer changes, with their texts after it."""
    answer = complete({"model": "any", "messages": aider_messages(instruction, files, form)}).content or ""
    return {path: text for path, text in files_after(answer, files, form).items() if files.get(path) != text}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("instruction", "before", "after"),
    [
        ("Add a docstring to main()", "None:\n    print", 'None:\n    """Run the program."""\n    print'),
        ("Add a docstring to greet()", "str:\n    return", 'str:\n    """Greet."""\n    return'),
        ('Add the docstring "Say hello to a person." to greet()', "str:\n", 'str:\n    """Say hello to a person."""\n'),
        ("Füge main() einen Docstring hinzu.", "None:\n    print", 'None:\n    """Run the program."""\n    print'),
        ("Add a TODO comment at line 7", "    print", "    # TODO: check this.\n    print"),
        ('Add a comment "the entry point" above main()', "def main", "# the entry point\ndef main"),
        ("Add a comment '# entry point' above main()", "def main", "# entry point\ndef main"),
        ("Add the line `import os` after `import sys`", "import sys\n", "import sys\nimport os\n"),
        ('Insert "import os" before line 3', "import sys", "import os\nimport sys"),
        ('Replace "Hello" with "Good morning"', "Hello, ", "Good morning, "),
        ('Replace line 3 with "import os"', "import sys", "import os"),
        ("Change World to Europe in src/main.py.", "World", "Europe"),
        ("Rename greet() to welcome()", "greet(", "welcome("),
        ("Remove the line `import sys`", "import sys\n", ""),
        ("Please delete line 3.", "import sys\n", ""),
        ('Append "# The end" to src/main.py', "    main()\n", "    main()\n# The end\n"),
    ],
)
def test_it_makes_the_edit_that_the_message_asks_for(form: Format, instruction: str, before: str, after: str) -> None:
    files = {"src/main.py": MAIN, "src/other.py": "x = 1\n"}
    expected = MAIN.replace(before, after) if after.count("\n") < 2 or before.count("\n") < 1 else MAIN.replace(before, after, 1)
    assert edit(instruction, files, form) == {"src/main.py": expected}


def test_it_removes_a_function_and_a_docstring() -> None:
    (without,) = edit("Remove the function main()", {"src/main.py": MAIN}).values()
    assert "def main" not in without
    assert "def greet" in without
    documented = MAIN.replace("None:\n", 'None:\n    """Greet\n    the world.\n    """\n')
    assert edit("Remove the docstring of main()", {"src/main.py": documented}) == {"src/main.py": MAIN}


def test_it_does_not_document_twice() -> None:
    documented = MAIN.replace("None:\n", 'None:\n    """Greet the world."""\n')
    assert edit("Add a docstring to main()", {"src/main.py": documented}) == {}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        ("Create docs/release-plan.md", "# Release plan\n"),
        ('Create docs/release-plan.md with the text "To be written."', "To be written.\n"),
        ("Write docs/release-plan.md:\n```\n# Plan\n\nShip it.\n```", "# Plan\n\nShip it.\n"),
        ("Write a section about the budget to docs/release-plan.md", "## The budget\n\nTo be written.\n"),
        ("Write a new licence section to docs/release-plan.md", "## Licence\n\nTo be written.\n"),
    ],
)
@pytest.mark.parametrize("shown", [{"docs/release-plan.md": ""}, {}, {"src/other.py": "x = 1\n"}], ids=["empty", "none", "other"])
def test_it_writes_a_new_file(form: Format, instruction: str, text: str, shown: dict[str, str]) -> None:
    answer = complete({"model": "any", "messages": aider_messages(instruction, shown, form)}).content or ""
    assert files_after(answer, {}, form)["docs/release-plan.md"] == text


def test_it_edits_each_file_that_the_message_names() -> None:
    files = {"a.py": "x = 1\n", "b.py": "x = 1\n", "c.py": "x = 1\n"}
    assert edit('Replace "x" with "y" in a.py and c.py', files) == {"a.py": "y = 1\n", "c.py": "y = 1\n"}


def test_a_searched_text_is_found_at_one_place_only() -> None:
    text = "".join(f"def f{n}():\n    pass\n\n" for n in range(30)) + "x = 1\n"
    (after,) = edit("Add a docstring to f17()", {"m.py": text}).values()
    assert after == text.replace("f17():\n", 'f17():\n    """F17."""\n')


def test_fences_within_a_file_do_not_end_it() -> None:
    text = "# Use\n\n```sh\nrun ``` now\n```\n\nThe end\n"
    answer = complete(
        {"messages": aider_messages("Replace `The end` with `Done`", {"a.md": text}, fence=("````", "````"))}
    ).content
    assert files_after(answer or "", {"a.md": text}, "diff", ("````", "````")) == {"a.md": text.replace("The end", "Done")}


def test_a_message_that_asks_for_no_edit_gets_none() -> None:
    assert edit("Please make everything better.", {"src/main.py": MAIN}) == {}


def test_a_complaint_of_aider_gets_the_same_edit_again() -> None:
    messages = aider_messages("Add a docstring to main()", {"src/main.py": MAIN})
    again = [
        *messages,
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "# 1 SEARCH/REPLACE block failed to match!"},
    ]
    assert complete({"messages": again}).content == complete({"messages": messages}).content


NAME: Final = st.text("abcxyz_.-", min_size=1, max_size=8).map(lambda name: f"src/{name}.py")
LINES: Final = st.lists(st.sampled_from(["def main():", "    pass", "", "x = 1", "# note", "```", "\tprint(1)\r"]), max_size=12)
INSTRUCTION: Final = st.sampled_from(
    [
        "Add a docstring to main()",
        "Add a comment at line 3",
        'Replace "x" with "y"',
        "Delete line 2",
        "Remove main()",
        'Append "z"',
    ]
)


@given(files=st.dictionaries(NAME, LINES.map("\n".join), min_size=1, max_size=3), instruction=INSTRUCTION, ended=st.booleans())
def test_both_formats_make_the_same_edit(files: dict[str, str], instruction: str, ended: bool) -> None:
    fence = ("<source>", "</source>")
    shown = {path: f"{text}\n" if ended and text else text for path, text in files.items()}
    results = []
    for form in FORMATS:
        answer = complete({"messages": aider_messages(instruction, shown, form, fence=fence)}).content or ""
        after = files_after(answer, shown, form, fence)
        results.append({path: text.rstrip("\n") for path, text in after.items()})
    assert results[0] == results[1]
