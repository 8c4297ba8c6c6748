"""The stand-in uses a workspace's tools as a question plainly asks, and says what they returned."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from local.standin.wire import Completion, complete
from spass.agents.job_card import JobCard

THREE_TASKS: Final = (
    "Ask the code director to add a docstring to main() in src/main.py, the documentation director to create docs/a.md, "
    "and the security lane to create infra/main.tf."
)
READ: Final = ("read_file", "list_directory", "search_files")
EDIT: Final = (*READ, "aider_edit")
ARCHITECT: Final = (*READ, "delegate")
Calls = list[tuple[str, dict[str, Any]]]


def ask(messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> Completion:
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return complete({"model": "any", "messages": messages, "tools": offered})


def calls_of(completion: Completion) -> Calls:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in completion.tool_calls]


def calls_for(question: str, tools: Sequence[str] = EDIT, earlier: Sequence[Mapping[str, Any]] = ()) -> Calls:
    return calls_of(ask([*earlier, {"role": "user", "content": question}], tools))


def after(question: str, name: str, result: object, tools: Sequence[str] = EDIT, **arguments: object) -> Completion:
    """Return what follows on the result of a call."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages: list[Mapping[str, Any]] = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]
    return ask(messages, tools)


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What files are in src/?", "list_directory", {"path": "src"}),
        ("What's in src/?", "list_directory", {"path": "src"}),
        ("Which files are in the docs folder?", "list_directory", {"path": "docs"}),
        ("Welche Dateien sind in src/app/?", "list_directory", {"path": "src/app"}),
        ("List the files.", "list_directory", {}),
        ("List all files.", "list_directory", {"depth": 8}),
        ("What's in src/main.py?", "read_file", {"path": "src/main.py"}),
        ("Show me src/main.py", "read_file", {"path": "src/main.py"}),
        ("Was steht in README.md?", "read_file", {"path": "README.md"}),
        ("Show me lines 3 to 7 of src/main.py", "read_file", {"path": "src/main.py", "start_line": 3, "end_line": 7}),
        ("What does the Dockerfile do?", "read_file", {"path": "Dockerfile"}),
        ("What is in .github/workflows/ci.yml?", "read_file", {"path": ".github/workflows/ci.yml"}),
        ("Where is `TODO` written?", "search_files", {"text": "TODO"}),
        ('Search for "greet" in src/', "search_files", {"text": "greet", "glob": "src/"}),
        ("Where is greet() used?", "search_files", {"text": "greet("}),
        ("Where is greet used?", "search_files", {"text": "greet"}),
        ("What does this project do?", "read_file", {"path": "README.md"}),
        ("Add a docstring to greet.", "search_files", {"text": "def greet("}),
    ],
)
def test_it_lists_reads_and_searches(question: str, name: str, arguments: dict[str, Any]) -> None:
    assert calls_for(question) == [(name, arguments)]


@pytest.mark.parametrize(
    "question",
    [
        "Add a docstring to main() in src/main.py",
        "Please add a docstring to main() in src/main.py.",
        "Add a TODO comment at line 10 of src/main.py",
        'Replace "Hello" with "config.yml" in src/main.py',
        "Füge main() in src/main.py einen Docstring hinzu.",
    ],
)
def test_it_edits_the_file_that_the_question_names(question: str) -> None:
    assert calls_for(question) == [("aider_edit", {"message": question, "files": ["src/main.py"]})]


@pytest.mark.parametrize(
    ("question", "message", "files"),
    [
        ("Delete docs/old.md", "/git rm docs/old.md", ["docs/old.md"]),
        ("Please remove the file docs/old.md.", "/git rm docs/old.md", ["docs/old.md"]),
        ("Rename docs/old.md to docs/new.md", "/git mv docs/old.md docs/new.md", ["docs/old.md", "docs/new.md"]),
        ("Undo the last change of docs/old.md", "/undo", ["docs/old.md"]),
        ("What changed in docs/old.md?", "/diff", ["docs/old.md"]),
        ("/git show 3", "/git show 3", ["README.md"]),
        ("Show me the history of a.md", "/git log a.md", ["a.md"]),
        ("Which versions are there?", "/git log", ["README.md"]),
        ("Bring a.md back to version 2, please.", "/git restore --source=2 a.md", ["a.md"]),
    ],
)
def test_it_deletes_moves_and_takes_back_by_commands(question: str, message: str, files: list[str]) -> None:
    assert calls_for(question) == [("aider_edit", {"message": message, "files": files})]


def test_the_task_of_a_job_card_is_the_message_of_its_edit() -> None:
    card = JobCard(
        title="Delete nothing", task="Add a docstring to main().", files=("src/main.py",), acceptance=("It is one line.",)
    )
    assert calls_for(card.render()) == [("aider_edit", {"message": "Add a docstring to main().", "files": ["src/main.py"]})]


@pytest.mark.parametrize(
    ("outcome", "fact"),
    [
        ({"approval_required": True, "approval_id": "apr_1"}, "waits for a person's approval (apr_1)"),
        ({"version": 4, "files": [], "answer": "Removed 1 file."}, "This is version 4."),
        ({"error": {"code": "approval_denied", "message": "The user denied this call."}}, "The user denied this call."),
    ],
)
@pytest.mark.parametrize("question", ["What did you change?", "Was it approved?", "What became of it?"])
def test_it_tells_what_came_of_its_last_call(question: str, outcome: object, fact: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "aider_edit", "arguments": '{"message": "/git rm docs/old.md"}'}}
    messages: list[Mapping[str, Any]] = [
        {"role": "user", "content": "Delete docs/old.md"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps(outcome)},
        {"role": "assistant", "content": "I asked for it."},
        {"role": "user", "content": question},
    ]
    completion = ask(messages, EDIT)
    assert completion.tool_calls == []
    assert fact in (completion.content or "")


def test_a_line_is_removed_from_a_file_and_the_file_stays() -> None:
    question = "Delete line 3 of docs/old.md"
    assert calls_for(question) == [("aider_edit", {"message": question, "files": ["docs/old.md"]})]


READ_MAIN: Final = (
    {"role": "user", "content": "What's in src/main.py?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "src/main.py"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": json.dumps({"path": "src/main.py", "text": "def main():\n    pass\n"})},
    {"role": "assistant", "content": "src/main.py:\n\n```\ndef main():\n    pass\n```"},
)
ADD: Final = "Add a docstring to main()"


def test_it_edits_the_file_that_was_read_before() -> None:
    assert calls_for(ADD, earlier=READ_MAIN) == [("aider_edit", {"message": ADD, "files": ["src/main.py"]})]
    assert calls_for("Undo that.", earlier=READ_MAIN) == [("aider_edit", {"message": "/undo", "files": ["src/main.py"]})]


def test_it_searches_for_a_function_that_no_earlier_file_shows() -> None:
    assert calls_for("Add a docstring to greet()", earlier=READ_MAIN) == [("search_files", {"text": "def greet("})]


def test_it_searches_for_a_function_of_which_only_the_prompt_speaks() -> None:
    earlier = (
        {"role": "system", "content": 'You edit files. An example: "Add a docstring to main()" in src/main.py.'},
        {"role": "user", "content": "What files are in src/?"},
        {"role": "assistant", "content": "src/ holds:\n- src/main.py\n- src/util.py"},
    )
    assert calls_for(ADD, earlier=earlier) == [("search_files", {"text": "def main("})]


def test_a_quoted_text_is_not_cut_out_of_the_name_of_a_file() -> None:
    question = "Write a file notes.txt with the text `x`"
    assert calls_for(question) == [("aider_edit", {"message": question, "files": ["notes.txt"]})]


def test_it_reads_the_file_that_an_error_names_instead() -> None:
    error = {"error": {"code": "file_not_found", "message": "There is no file 'main.py'. Did you mean 'src/main.py'?"}}
    assert calls_of(after("What's in main.py?", "read_file", error)) == [("read_file", {"path": "src/main.py"})]


def test_the_summary_of_a_file_is_about_the_file_and_not_about_the_conversation() -> None:
    questions = [{"role": "user", "content": text} for text in ("My dog is called Bello.", "Summarize src/main.py")]
    summary = ask([*questions, *READ_MAIN[1:3]], EDIT).content or ""
    assert ("def main" in summary, "Bello" in summary) == (True, False)


def test_what_it_does_not_understand_is_answered_by_an_example() -> None:
    system = {"role": "system", "content": "You can call aider_edit."}
    assert "What files are in src/?" in (ask([system, {"role": "user", "content": "Who are you?"}], EDIT).content or "")


def test_the_indices_are_listed_and_not_searched() -> None:
    tools = (*EDIT, "rag_query", "rag_index_list", "rag_doc_list")
    assert calls_for("List the indices", tools) == calls_for("Which indices are there?", tools) == [("rag_index_list", {})]


def test_it_edits_the_file_that_it_found() -> None:
    matches = [{"path": path, "line": 3, "text": "def main():"} for path in ("tests/test_main.py", "src/app.py", "src/main.py")]
    assert calls_for(ADD) == [("search_files", {"text": "def main("})]
    following = after(ADD, "search_files", {"matches": matches, "truncated": False})
    assert calls_of(following) == [("aider_edit", {"message": ADD, "files": ["src/main.py"]})]


def test_without_a_search_it_lists_the_files_to_find_one() -> None:
    tools = ("aider_edit", "read_file", "list_directory")
    assert calls_for(ADD, tools) == [("list_directory", {"depth": 8})]
    entries = [{"path": path, "type": "file", "size": 3} for path in ("README.md", "src/main.py", "src/util.py")]
    following = after(ADD, "list_directory", {"path": "", "entries": entries, "truncated": False}, tools)
    assert calls_of(following) == [("aider_edit", {"message": ADD, "files": ["src/main.py"]})]


def test_a_function_that_is_nowhere_is_not_edited() -> None:
    following = after(ADD, "search_files", {"matches": [], "truncated": False})
    assert (calls_of(following), following.content) == ([], "No file contains that.")


@pytest.mark.parametrize(
    ("question", "delegates"),
    [
        (
            "Ask the docs director to add a section about testing to README.md",
            [("docs", "add a section about testing to README.md")],
        ),
        ("Have dir-code add a docstring to main().", [("code", "add a docstring to main().")]),
        ("Delegate to dir-models: what is in configs/?", [("models", "what is in configs/?")]),
        (
            THREE_TASKS,
            [
                ("code", "add a docstring to main() in src/main.py"),
                ("docs", "create docs/a.md"),
                ("devsecops", "create infra/main.tf."),
            ],
        ),
        ("Add a docstring to main() in src/main.py", [("code", "Add a docstring to main() in src/main.py")]),
        ("Create docs/plan.md", [("docs", "Create docs/plan.md")]),
        ("Create schemas/user.json", [("data", "Create schemas/user.json")]),
    ],
)
def test_it_delegates_to_the_lanes_that_the_question_names(question: str, delegates: Sequence[tuple[str, str]]) -> None:
    expected = [("delegate", {"agent": f"dir-{lane}", "task": task}) for lane, task in delegates]
    assert calls_for(question, ARCHITECT) == expected


def test_it_reads_by_itself_what_needs_no_director() -> None:
    assert calls_for("What's in src/main.py?", ARCHITECT) == [("read_file", {"path": "src/main.py"})]


def test_a_director_searches_an_index_only_if_the_question_says_so() -> None:
    tools = (*EDIT, "rag_query", "rag_index_list", "rag_index_delete", "rag_doc_delete")
    assert calls_for("What can you do for me?", tools) == []
    assert [name for name, _ in calls_for("What does the index sales-2 say about prices?", tools)] == ["rag_query"]
    assert calls_for("Delete the index sales-2", tools) == [("rag_index_delete", {})]


DIFF: Final = '--- a/src/main.py\n+++ b/src/main.py\n@@ -1 +1,2 @@\n def main():\n+    """Run."""\n'
CHANGED: Final = {"path": "src/main.py", "status": "changed", "added": 1, "removed": 0, "unified": DIFF, "truncated": False}
WAITING: Final = {"approval_required": True, "approval_id": "apr_1", "preview": {}, "message": "A person decides."}


@pytest.mark.parametrize(
    ("name", "result", "facts"),
    [
        (
            "list_directory",
            {"path": "src", "entries": [{"path": "src/main.py", "type": "file"}, {"path": "src/app", "type": "directory"}]},
            ["src/ holds", "- src/main.py", "- src/app/"],
        ),
        ("list_directory", {"path": "", "entries": []}, ["The workspace is empty."]),
        ("read_file", {"path": "src/main.py", "text": "def main():\n    pass\n"}, ["src/main.py:", "def main():\n    pass\n"]),
        ("search_files", {"matches": [{"path": "a.py", "line": 3, "text": "  x = 1"}]}, ["- a.py:3: x = 1"]),
        (
            "aider_edit",
            {"version": 4, "files": [CHANGED], "answer": "…"},
            ["src/main.py (+1 −0)", "version 4", '+    """Run."""'],
        ),
        (
            "aider_edit",
            {"version": None, "files": [], "answer": "I see nothing to do."},
            ["Nothing was changed. I see nothing to do."],
        ),
        ("aider_edit", WAITING, ["waits for a person's approval (apr_1)"]),
        ("rag_index_delete", WAITING, ["waits for a person's approval (apr_1)"]),
        ("aider_edit", {"error": {"code": "path_not_allowed", "message": "docs/ is not yours."}}, ["docs/ is not yours."]),
        ("delegate", {"agent": "dir-docs", "answer": "Done.", "approvals": []}, ["dir-docs: Done."]),
        (
            "delegate",
            {"agent": "dir-code", "answer": "I wait.", "approvals": [WAITING]},
            ["dir-code (waits for approval: apr_1): I wait."],
        ),
    ],
)
def test_it_says_what_a_tool_returned(name: str, result: dict[str, Any], facts: Sequence[str]) -> None:
    completion = after("What came of it?", name, result)
    assert completion.tool_calls == []
    assert [fact for fact in facts if fact not in (completion.content or "")] == []


def test_it_repeats_what_a_command_shows() -> None:
    shown: dict[str, Any] = {"version": None, "files": [], "answer": "Version 3 has 5 files."}
    assert after("What is there?", "aider_edit", shown, message="/git status").content == "Version 3 has 5 files."
