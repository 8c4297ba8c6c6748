"""The stand-in uses a workspace's tools as a question plainly asks, and says what they returned."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from local.standin.wire import Completion, complete
from spass.runs.chat_body import JobCard

READ: Final = ("read_file", "list_directory", "search_files")
EDIT: Final = (*READ, "aider_edit")
ARCHITECT: Final = (*READ, "delegate")
Calls = list[tuple[str, dict[str, Any]]]


def ask(messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> Completion:
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return complete({"model": "any", "messages": messages, "tools": offered})


def calls_of(completion: Completion) -> Calls:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in completion.tool_calls]


def calls_for(question: str, tools: Sequence[str] = EDIT) -> Calls:
    return calls_of(ask([{"role": "user", "content": question}], tools))


def turn(question: str, name: str, result: object, **arguments: object) -> list[Mapping[str, Any]]:
    """Return a question, a call and its result."""
    call = {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{name}", "content": json.dumps(result)},
    ]


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What files are in src/?", "list_directory", {"path": "src"}),
        ("What's in src/app/?", "list_directory", {"path": "src/app"}),
        ("List the files.", "list_directory", {}),
        ("What's in src/main.py?", "read_file", {"path": "src/main.py"}),
        ("What does the Dockerfile do?", "read_file", {"path": "Dockerfile"}),
        ("What is in .github/workflows/ci.yml?", "read_file", {"path": ".github/workflows/ci.yml"}),
        ("Show me `src/main.py`", "read_file", {"path": "src/main.py"}),
        ("Where is `TODO` written?", "search_files", {"text": "TODO"}),
        ("Delete docs/old.md", "aider_edit", {"message": "/git rm docs/old.md", "files": ["docs/old.md"]}),
        ("Please remove the file docs/old.md.", "aider_edit", {"message": "/git rm docs/old.md", "files": ["docs/old.md"]}),
        ("Delete `docs/old.md`", "aider_edit", {"message": "/git rm docs/old.md", "files": ["docs/old.md"]}),
        ("Add a docstring to main()", "search_files", {"text": "def main("}),
    ],
)
def test_it_lists_reads_searches_and_deletes(question: str, name: str, arguments: dict[str, Any]) -> None:
    assert calls_for(question) == [(name, arguments)]


@pytest.mark.parametrize(
    "question",
    [
        "Please add a docstring to main() in src/main.py.",
        'Replace "Hello" with "config.yml" in src/main.py',
        "Create src/main.py with the text `{}`",
        JobCard(title="Delete nothing", task="Add a docstring to main().", files=("src/main.py",)).render(),
    ],
)
def test_it_edits_the_file_that_the_question_names(question: str) -> None:
    assert calls_for(question) == [("aider_edit", {"message": question, "files": ["src/main.py"]})]


def test_it_edits_the_file_in_which_it_found_the_function_and_then_answers() -> None:
    paths = ("tests/test_main.py", "src/main.py")
    found = {"matches": [{"path": path, "line": 3, "text": "def main():"} for path in paths], "truncated": False}
    searched = turn("Add a docstring to main()", "search_files", found, text="def main(")
    arguments = {"message": "Add a docstring to main()", "files": ["src/main.py"]}
    assert calls_of(ask(searched, EDIT)) == [("aider_edit", arguments)]
    edited = turn("", "aider_edit", {"version": 2, "files": [CHANGED], "answer": "…"}, **arguments)[1:]
    assert calls_of(ask([*searched, *edited], EDIT)) == []
    assert (ask([*searched, *edited], EDIT).content or "").startswith("Changed: src/main.py")


def test_a_function_that_is_nowhere_is_not_edited() -> None:
    completion = ask(turn("Add a docstring to main()", "search_files", {"matches": []}, text="def main("), EDIT)
    assert (completion.tool_calls, completion.content) == ([], "Found: nothing.")


@pytest.mark.parametrize(
    ("question", "delegates"),
    [
        (
            "Ask the docs director to add a section about testing to README.md",
            [("docs", "add a section about testing to README.md")],
        ),
        (
            "Ask the code director to add a docstring to main(), and the devsecops director to create infra/main.tf.",
            [("code", "add a docstring to main()"), ("devsecops", "create infra/main.tf.")],
        ),
    ],
)
def test_it_delegates_to_the_directors_that_the_question_names(question: str, delegates: Sequence[tuple[str, str]]) -> None:
    expected = [("delegate", {"agent": f"dir-{lane}", "task": task}) for lane, task in delegates]
    assert calls_for(question, ARCHITECT) == expected


def test_it_reads_by_itself_what_needs_no_director() -> None:
    assert calls_for("What's in src/main.py?", ARCHITECT) == [("read_file", {"path": "src/main.py"})]


DIFF: Final = '--- a/src/main.py\n+++ b/src/main.py\n@@ -1 +1,2 @@\n def main():\n+    """Run."""\n'
CHANGED: Final = {"path": "src/main.py", "status": "changed", "added": 1, "removed": 0, "unified": DIFF, "truncated": False}
WAITING: Final = {"approval_required": True, "approval_id": "apr_1", "preview": {}, "message": "A person decides."}
ENTRIES: Final = [{"path": "src/main.py", "type": "file"}, {"path": "src/app", "type": "directory"}]


@pytest.mark.parametrize(
    ("name", "result", "facts"),
    [
        ("list_directory", {"path": "src", "entries": ENTRIES}, ["src/ holds", "- src/main.py", "- src/app/"]),
        ("list_directory", {"path": "", "entries": []}, ["The workspace holds: nothing."]),
        ("read_file", {"path": "src/main.py", "text": "def main():\n    pass\n"}, ["src/main.py:", "def main():\n    pass\n"]),
        ("search_files", {"matches": [{"path": "a.py", "line": 3, "text": "  x = 1"}]}, ["- a.py:3: x = 1"]),
        ("aider_edit", {"version": 4, "files": [CHANGED]}, ["src/main.py (+1 −0)", "version 4", '+    """Run."""']),
        ("aider_edit", {"version": None, "files": [], "answer": "I see nothing to do."}, ["I see nothing to do."]),
        ("aider_edit", WAITING, ["waits for a person's approval (apr_1)"]),
        ("aider_edit", {"error": {"code": "path_not_allowed", "message": "docs/ is not yours."}}, ["docs/ is not yours."]),
        ("delegate", {"agent": "dir-docs", "answer": "Done.", "approvals": []}, ["dir-docs: Done."]),
    ],
)
def test_it_says_what_a_tool_returned(name: str, result: dict[str, Any], facts: Sequence[str]) -> None:
    completion = ask(turn("What came of it?", name, result), EDIT)
    assert completion.tool_calls == []
    assert [fact for fact in facts if fact not in (completion.content or "")] == []


def test_it_tells_what_came_of_its_last_call() -> None:
    earlier = turn("Delete docs/old.md", "aider_edit", WAITING, message="/git rm docs/old.md")
    completion = ask([*earlier, {"role": "user", "content": "What did you change?"}], EDIT)
    assert completion.tool_calls == []
    assert "waits for a person's approval (apr_1)" in (completion.content or "")
