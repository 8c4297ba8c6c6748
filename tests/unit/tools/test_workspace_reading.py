"""The tools that read a workspace: arguments, limits, errors, blocks for people, and what the globs hide."""

import inspect
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidPath
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.tools.builtin import workspace_reading
from spass.tools.builtin.workspace_reading import MAX_TEXT_BYTES
from spass.tools.languages import language_of
from spass.tools.registry import TOOLS, load_tool
from spass.tools.results import MAX_RESULT_BYTES, MAX_RICH_BYTES
from spass.workspaces.paths import parse_folder
from spass.workspaces.service import Workspace
from tests.hostile_paths import SENDABLE
from tests.unit.tools.workspace_agent import WorkspaceAgent, tool_call

pytestmark = pytest.mark.anyio

READ_TOOLS = ("read_file", "list_directory", "search_files")
MAIN = 'import sys\n\n\ndef main():\n    print("hello")\n'
FILES: Mapping[str, str | bytes] = {
    "README.md": "# Demo\nRun main.\n",
    "src/main.py": MAIN,
    "src/app/greet.py": "def greet():\n    return 'Hello'\n",
    "docs/guide.md": "Say HELLO\r\nto Straße.\r\n",
    "secrets/key.txt": "hello hunter2\n",
    "secrets/deep/er.txt": "hello\n",
    "logo.png": b"\x89PNG hello",
    "data.bin": b"hello\0",
}
HIDING = ("**", "!secrets/", "!docs/")


async def agent_with(files: Mapping[str, str | bytes], read: Sequence[str] = ("**",)) -> WorkspaceAgent:
    agent = WorkspaceAgent(read=read)
    await agent.write_files(files)
    return agent


async def demo(read: Sequence[str] = ("**",)) -> WorkspaceAgent:
    return await agent_with(FILES, read)


def entries(result: dict[str, Json]) -> list[dict[str, Json]]:
    return cast("list[dict[str, Json]]", result["entries"])


def matches(result: dict[str, Json]) -> list[tuple[str, int, str]]:
    return [(row["path"], row["line"], row["text"]) for row in cast("list[dict[str, str | int]]", result["matches"])]  # type: ignore[misc]


# read_file


async def test_a_file_is_read_whole_with_a_block_for_people() -> None:
    outcome = await (await demo()).call("read_file", path="src/main.py")
    assert outcome.result == {
        "path": "src/main.py",
        "text": MAIN,
        "start_line": 1,
        "end_line": 5,
        "total_lines": 5,
        "truncated": False,
    }
    assert outcome.rich == (
        {"kind": "file", "path": "src/main.py", "language": "python", "text": MAIN, "start_line": 1, "truncated": False},
    )
    assert "rich" not in outcome.message.content


@pytest.mark.parametrize(
    ("first", "last", "text", "end"),
    [
        (1, 1, "import sys\n", 1),
        (4, 5, 'def main():\n    print("hello")\n', 5),
        (4, None, 'def main():\n    print("hello")\n', 5),
        (2, 3, "\n\n", 3),
        (5, 99, '    print("hello")\n', 5),
        (6, None, "", 5),
        (10**9, None, "", 10**9 - 1),
    ],
)
async def test_lines_are_read_by_number(first: int, last: int | None, text: str, end: int) -> None:
    agent = await demo()
    wanted = {"start_line": first} | ({} if last is None else {"end_line": last})
    outcome = await agent.call("read_file", path="src/main.py", **wanted)
    assert outcome.result == {
        "path": "src/main.py",
        "text": text,
        "start_line": first,
        "end_line": end,
        "total_lines": 5,
        "truncated": False,
    }
    assert cast("dict[str, Json]", outcome.rich[0])["start_line"] == first


@pytest.mark.parametrize(
    ("body", "lines"), [("", 0), ("\n", 1), ("a", 1), ("a\nb", 2), ("a\r\nb\r\n", 2), ("a\u2028b\rc\x0bd\n", 1)]
)
async def test_a_line_ends_at_a_line_feed(body: str, lines: int) -> None:
    result = await (await agent_with({"a": body})).result("read_file", path="a")
    assert (result["text"], result["end_line"], result["total_lines"]) == (body, lines, lines)


@pytest.mark.parametrize(
    "line",
    ["x" * 99 + "\n", "é" * 50 + "\n", '"\n', "\n", "\t\x01\n", "日本語\n", "😀" * 20 + "\n", '\\"' * 40 + "\n"],
    ids=ascii,
)
async def test_a_long_file_is_read_in_pages_of_48_kib(line: str) -> None:
    whole = (line * (200_000 // len(line.encode()) + 1))[:-1]
    agent = await agent_with({"long.txt": whole})
    read, start, pages = "", 1, 0
    while True:
        outcome = await agent.call("read_file", path="long.txt", start_line=start)
        result = cast("dict[str, Json]", outcome.result)
        assert len(str(result["text"]).encode()) <= MAX_TEXT_BYTES
        assert len(outcome.message.content.encode()) <= MAX_RESULT_BYTES
        read += str(result["text"])
        pages += 1
        if not result["truncated"]:
            break
        assert str(result["text"]).endswith("\n")
        start = cast("int", result["end_line"]) + 1
    assert read == whole
    assert 4 < pages < 60
    assert cast("int", result["end_line"]) == result["total_lines"] == len(re.findall(r"[^\n]*\n|[^\n]+", whole))


@pytest.mark.parametrize("character", ["x", "é", "\x01", '"', "😀"])
async def test_a_line_that_is_too_long_is_cut_and_the_next_page_goes_on(character: str) -> None:
    agent = await agent_with({"min.js": f"first\n{character * 300_000}\nlast\n"})
    first = await agent.result("read_file", path="min.js")
    assert (first["text"], first["end_line"], first["truncated"]) == ("first\n", 1, True)
    second = await agent.result("read_file", path="min.js", start_line=2)
    assert set(str(second["text"])) == {character}
    assert (second["start_line"], second["end_line"], second["total_lines"], second["truncated"]) == (2, 2, 3, True)
    assert 9_000 < len(str(second["text"]).encode()) <= MAX_TEXT_BYTES
    third = await agent.result("read_file", path="min.js", start_line=3)
    assert (third["text"], third["truncated"]) == ("last\n", False)


@given(
    st.lists(st.text('ab"\n\r日', max_size=9), max_size=9).map("".join),
    st.integers(1, 12),
    st.integers(1, 12) | st.none(),
    st.integers(8, 40),
)
def test_a_page_is_the_wanted_lines_or_a_beginning_of_them(text: str, first: int, last: int | None, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace_reading, "MAX_TEXT_BYTES", limit)
        part = workspace_reading._take_lines(text, first, last)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    wanted = lines[first - 1 : last]
    assert part.total == len(lines)
    assert len(part.text.encode()) <= limit
    assert part.truncated == (part.text != "".join(wanted))
    if part.truncated:
        assert part.lines >= 1
        assert "".join(wanted).startswith(part.text)
        assert part.text == "".join(wanted[: part.lines]) or part.lines == 1
    else:
        assert part.lines == len(wanted)


async def test_a_file_that_is_not_text_is_an_error() -> None:
    agent = await demo()
    for path in ("logo.png", "data.bin"):
        code, message = await agent.error("read_file", path=path)
        assert code == "not_text"
        assert path in message


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("src/other.py", "Find files with list_directory"),
        ("main.py", "Did you mean 'src/main.py'?"),
        ("src", "'src' is a folder. List it"),
        ("src/main.py/x", "There is no file"),
    ],
)
async def test_a_missing_file_is_an_error_that_helps(path: str, words: str) -> None:
    code, message = await (await demo()).error("read_file", path=path)
    assert code == "file_not_found"
    assert words in message


async def test_the_newest_version_is_read() -> None:
    agent = await demo()
    await agent.write_files({"README.md": "new\n"})
    assert (await agent.result("read_file", path="README.md"))["text"] == "new\n"
    await agent.harness.write({"README.md": None})
    assert (await agent.error("read_file", path="README.md"))[0] == "file_not_found"


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("a.py", "python"),
        ("a/Dockerfile.dev", "dockerfile"),
        ("Makefile", "makefile"),
        ("A.YML", "yaml"),
        ("x", "text"),
        (".py", "text"),
    ],
)
def test_the_language_follows_from_the_name(path: str, language: str) -> None:
    assert language_of(path) == language


# list_directory


async def test_the_root_is_listed_with_a_tree_for_people() -> None:
    outcome = await (await demo()).call("list_directory")
    expected = [
        {"path": "README.md", "type": "file", "size": 17},
        {"path": "data.bin", "type": "file", "size": 6},
        {"path": "docs", "type": "directory", "size": None},
        {"path": "logo.png", "type": "file", "size": 10},
        {"path": "secrets", "type": "directory", "size": None},
        {"path": "src", "type": "directory", "size": None},
    ]
    assert outcome.result == {"path": "", "entries": expected, "truncated": False}
    assert outcome.rich == ({"kind": "file_tree", "root": "", "entries": expected, "truncated": False},)


async def test_a_folder_is_listed_as_deep_as_wanted() -> None:
    agent = await demo()
    shallow, deep = await agent.result("list_directory", path="src/"), await agent.result("list_directory", path="src", depth=32)
    assert shallow["path"] == deep["path"] == "src"
    assert [entry["path"] for entry in entries(shallow)] == ["src/app", "src/main.py"]
    assert [entry["path"] for entry in entries(deep)] == ["src/app", "src/app/greet.py", "src/main.py"]


async def test_at_most_500_entries_are_listed() -> None:
    agent = await agent_with({f"f{number:04}": "" for number in range(501)})
    outcome = await agent.call("list_directory")
    result = cast("dict[str, Json]", outcome.result)
    assert [entry["path"] for entry in entries(result)] == [f"f{number:04}" for number in range(500)]
    assert result["truncated"] is True
    await agent.harness.write({"f0000": None})
    whole = await agent.result("list_directory")
    assert (len(entries(whole)), whole["truncated"]) == (500, False)


async def test_long_paths_are_listed_until_the_result_is_full() -> None:
    agent = await agent_with({f"{number:03}{'x' * 300}/{'y' * 200}": "" for number in range(300)})
    outcome = await agent.call("list_directory", depth=2)
    result = cast("dict[str, Json]", outcome.result)
    assert len(outcome.message.content.encode()) <= MAX_RESULT_BYTES
    assert 50 < len(entries(result)) < 500
    assert result["truncated"] is True
    block = cast("dict[str, Json]", outcome.rich[0])
    assert len(cast("list[Json]", block["entries"])) > len(entries(result))
    assert len(dump_bytes([*outcome.rich])) <= MAX_RICH_BYTES


async def test_an_empty_workspace_has_an_empty_root() -> None:
    agent = WorkspaceAgent()
    assert await agent.result("list_directory") == {"path": "", "entries": [], "truncated": False}
    assert await agent.result("search_files", text="x") == {"matches": [], "truncated": False}
    assert (await agent.error("read_file", path="a"))[0] == "file_not_found"
    assert (await agent.error("list_directory", path="a"))[0] == "file_not_found"


async def test_a_missing_folder_and_a_file_are_errors_that_help() -> None:
    agent = await demo()
    assert await agent.error("list_directory", path="lib") == (
        "file_not_found",
        "There is no folder 'lib'. List the folder above it.",
    )
    code, message = await agent.error("list_directory", path="src/main.py")
    assert code == "file_not_found"
    assert "is a file. Read it with read_file" in message


async def test_a_warm_listing_of_5000_files_does_not_read_the_whole_tree() -> None:
    agent = await agent_with({f"src/package{number % 60}/module{number}.py": "" for number in range(5000)}, ("**", "!secrets/"))
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        await agent.result("list_directory", path="src")
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.02  # the whole call; with all paths sorted and decoded it would take 100 ms


# search_files


async def test_lines_are_found_whatever_their_case() -> None:
    agent = await demo()
    assert matches(await agent.result("search_files", text="HELLO")) == [
        ("docs/guide.md", 1, "Say HELLO"),
        ("secrets/deep/er.txt", 1, "hello"),
        ("secrets/key.txt", 1, "hello hunter2"),
        ("src/app/greet.py", 2, "    return 'Hello'"),
        ("src/main.py", 5, '    print("hello")'),
    ]
    assert matches(await agent.result("search_files", text="STRASSE")) == [("docs/guide.md", 2, "to Straße.")]
    assert matches(await agent.result("search_files", text="print(.*)")) == []


async def test_a_glob_limits_the_search() -> None:
    agent = await demo()
    for glob, paths in {"src/": 2, "**/*.py": 2, "*.md": 0, "docs/*.md": 1, "src/main.py": 1, "nothing/": 0}.items():
        assert len(matches(await agent.result("search_files", text="hello", glob=glob))) == paths


async def test_a_search_ends_after_max_results() -> None:
    agent = await agent_with({"a": "x\n" * 30, "b": "x\n" * 30, "c": b"x" * 100 + b"\xff"})
    result = await agent.result("search_files", text="X", max_results=40)
    assert [row[:2] for row in matches(result)] == [
        *(("a", line) for line in range(1, 31)),
        *(("b", line) for line in range(1, 11)),
    ]
    assert result["truncated"] is True
    exact = await agent.result("search_files", text="x", max_results=60)
    assert (len(matches(exact)), exact["truncated"]) == (60, False)
    assert len(matches(await agent.result("search_files", text="x"))) == 50


async def test_500_matches_of_long_lines_fit_into_a_result() -> None:
    agent = await agent_with({f"{'p' * 200}.txt": ("é" * 400 + "needle" + "é" * 400 + "\n") * 600})
    outcome = await agent.call("search_files", text="needle", max_results=500)
    result = cast("dict[str, Json]", outcome.result)
    assert len(outcome.message.content.encode()) <= MAX_RESULT_BYTES
    assert 20 < len(matches(result)) < 500
    assert result["truncated"] is True
    assert all("needle" in text and len(text) < 250 for _, _, text in matches(result))


async def test_a_search_that_takes_too_long_ends_with_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await agent_with({f"f{number:03}": "needle\n" for number in range(400)})
    monkeypatch.setattr(workspace_reading, "_BATCH_FILES", 100)
    monkeypatch.setattr(workspace_reading, "MAX_SECONDS", 0.5)
    read_many = Workspace.read_many
    batches = 0

    async def read_one_batch(*arguments: object) -> object:
        nonlocal batches
        batches += 1
        if batches > 1:
            await anyio.sleep(60)
        return await read_many(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "read_many", read_one_batch)
    result = await agent.result("search_files", text="needle", max_results=500)
    assert [row[0] for row in matches(result)] == [f"f{number:03}" for number in range(100)]
    assert result["truncated"] is True


async def test_a_large_workspace_is_searched_in_bounded_memory() -> None:
    agent = await agent_with({f"f{number}": b"some text\n" * 100_000 + b"needle %d\n" % number for number in range(12)})
    started = time.perf_counter()
    found = matches(await agent.result("search_files", text="needle"))
    assert sorted(row[2] for row in found) == sorted(f"needle {number}" for number in range(12))
    assert {row[1] for row in found} == {100_001}
    assert time.perf_counter() - started < 10


# globs


@pytest.mark.parametrize("path", ["secrets/key.txt", "secrets/nothing.txt", "docs/guide.md", "secrets/deep/er.txt/x"])
async def test_a_path_outside_the_globs_is_an_error_whether_it_exists_or_not(path: str) -> None:
    code, message = await (await demo(HIDING)).error("read_file", path=path)
    assert (code, message) == (
        "path_not_allowed",
        f"This agent may not read '{path}'. It may read the paths **, !secrets/, !docs/.",
    )


async def test_what_the_globs_hide_cannot_be_told_from_what_is_absent() -> None:
    agent = await demo(HIDING)
    absent = await agent_with({path: body for path, body in FILES.items() if not path.startswith(("secrets/", "docs/"))}, HIDING)
    folders = ("", "secrets", "secrets/deep", "docs", "secrets/key.txt", "docs/none", "none")
    files = ("secrets", "secrets/key.txt", "docs", "key.txt", "guide.md", "secrets/x", "none")
    calls: list[tuple[str, dict[str, Json]]] = [("list_directory", {"path": path, "depth": 9}) for path in folders]
    calls += [("read_file", {"path": path}) for path in files]
    calls += [("search_files", {"text": text, "glob": glob}) for text in ("hello", "hunter2") for glob in ("**", "secrets/")]
    for tool, arguments in calls:
        seen, unseen = await agent.call(tool, **arguments), await absent.call(tool, **arguments)
        assert (seen.result, seen.rich) == (unseen.result, unseen.rich), (tool, arguments)


async def test_a_listing_shows_folders_only_if_a_file_in_them_may_be_read() -> None:
    agent = await demo(["**/*.md", "secrets/deep/"])
    result = await agent.result("list_directory", depth=3)
    assert [entry["path"] for entry in entries(result)] == [
        *("README.md", "docs", "docs/guide.md", "secrets", "secrets/deep", "secrets/deep/er.txt"),
    ]
    assert (await agent.error("list_directory", path="src"))[0] == "file_not_found"
    only_docs = await demo(["docs/"])
    assert [entry["path"] for entry in entries(await only_docs.result("list_directory"))] == ["docs"]
    assert (await only_docs.error("list_directory", path="src"))[0] == "path_not_allowed"


# arguments


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("read_file", {}, "path"),
        ("read_file", {"path": 1}, "path"),
        ("read_file", {"path": "a", "lines": 3}, "lines"),
        ("read_file", {"path": "a", "start_line": 0}, "start_line"),
        ("read_file", {"path": "a", "start_line": "1"}, "start_line"),
        ("read_file", {"path": "a", "end_line": 0}, "end_line"),
        ("read_file", {"path": "a", "start_line": 5, "end_line": 4}, "end_line must not be before start_line"),
        ("list_directory", {"depth": 0}, "depth"),
        ("list_directory", {"depth": 33}, "depth"),
        ("list_directory", {"path": None}, "path"),
        ("list_directory", {"folder": "src"}, "folder"),
        ("search_files", {}, "text"),
        ("search_files", {"text": ""}, "text"),
        ("search_files", {"text": " "}, "text"),
        ("search_files", {"text": "a\nb"}, "a part of one line"),
        ("search_files", {"text": "x" * 501}, "text"),
        ("search_files", {"text": "a", "glob": "../*"}, "from the root"),
        ("search_files", {"text": "a", "glob": "/src"}, "write 'src'"),
        ("search_files", {"text": "a", "glob": "!src/"}, "every pattern excludes"),
        ("search_files", {"text": "a", "max_results": 0}, "max_results"),
        ("search_files", {"text": "a", "max_results": 501}, "max_results"),
    ],
)
async def test_wrong_arguments_are_errors_that_name_the_argument(tool: str, arguments: dict[str, Json], words: str) -> None:
    agent = WorkspaceAgent()
    code, message = await agent.error(tool, **arguments)
    assert code == "invalid_arguments"
    assert words in message


async def test_hostile_paths_are_refused_by_every_tool() -> None:
    agent = await demo()
    wrong = []
    for path in SENDABLE:
        if len(path) > 10_000:
            continue
        if (await agent.error("read_file", path=path))[0] != "invalid_path":
            wrong.append(("read_file", path))
        if is_folder(path):
            continue
        if (await agent.error("list_directory", path=path))[0] != "invalid_path":
            wrong.append(("list_directory", path))
    assert wrong == []


def is_folder(path: str) -> bool:
    try:
        parse_folder(path)
    except InvalidPath:
        return False
    return True


# without a workspace


@pytest.mark.parametrize(
    ("tool", "arguments"), [("read_file", {"path": "../x"}), ("list_directory", {}), ("search_files", {"text": "x"})]
)
async def test_without_a_workspace_the_tools_are_unavailable(tool: str, arguments: dict[str, Json]) -> None:
    agent = await demo()
    answer = await agent.toolbox().execute_direct(agent.scope(), tool, arguments)
    assert answer.failed
    assert cast("dict[str, dict[str, str]]", answer.body.result)["error"]["code"] == "tool_unavailable"
    outcome = await agent.toolbox().execute(agent.scope(), tool_call(tool, arguments), allowed=TOOLS)
    assert cast("dict[str, dict[str, str]]", outcome.result)["error"]["code"] == "tool_unavailable"


async def test_another_tenant_has_another_workspace() -> None:
    await demo()
    other = WorkspaceAgent()
    assert entries(await other.result("list_directory", depth=9)) == []


@pytest.mark.parametrize("tool", READ_TOOLS)
def test_the_example_of_a_tool_has_valid_arguments(tool: str) -> None:
    loaded = load_tool(tool)
    example = inspect.cleandoc(loaded.__doc__ or "").replace("\n", " ").partition("Example: ")[2]
    arguments, _ = json.JSONDecoder().raw_decode(example)
    assert loaded.model_validate(arguments).model_dump(exclude_unset=True) == arguments
    assert loaded.category == "workspace"
