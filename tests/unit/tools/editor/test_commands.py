"""Commands of ``aider_edit`` are answered from the versions; everything else that begins like a command is refused."""

from dataclasses import replace

import pytest

from tests.unit.tools.editor.edit_harness import EditHarness, error_of, grants, result_of
from tests.unit.workspaces.harness import writes

pytestmark = pytest.mark.anyio

MAIN = b"def main():\n    print('hello')\n"


@pytest.fixture
async def harness() -> EditHarness:
    """A workspace with three versions: two files, a change of one, a new one."""
    harness = EditHarness()
    await harness.files.write({"src/main.py": MAIN, "README.md": b"# Demo\n"})
    await harness.files.write({"src/main.py": MAIN.replace(b"hello", b"world")})
    await harness.files.write({"src/new.py": b"x = 1\n"})
    return harness


@pytest.mark.parametrize(
    "message",
    [
        *(
            "!ls",
            "! rm -rf /",
            "\u200b/undo",
            "\ufeff /git rm src/main.py",
            "\u2060\n\u202e!ls",
            "/run ls",
            "/add ~/.ssh/id_rsa",
            "/",
            "//",
            "/git",
            "/gitlog",
            "/commit",
            "/web http://x",
            "/test",
        ),
        *(
            "/git a; x",
            "/git log; rm x",
            "/git log && x",
            "/git log | x",
            "/git log > x",
            "/git log `x`",
            "/git log $(x)",
            "/git log $X",
        ),
        *(
            "/git -c core.pager=x log",
            "/git --git-dir=/x log",
            "/git show --output=x",
            "/git log --pretty=x",
            "/git log -p",
            "/git log -n",
        ),
        *("/git diff --ext-diff", "/git rm -f src/main.py", "/git rm --cached x", "/git mv -f a b", "/git mv a", "/git mv a b c"),
        *(
            "/git restore",
            "/git restore --source= x",
            "/git revert",
            "/git revert 1 2",
            "/git push",
            "/git clone x",
            "/git commit -m x",
        ),
        *(
            "/git checkout x",
            "/git reset --hard",
            "/git stash",
            "/git log 'src",
            '/git log "src',
            "/undo now",
            "/diff x",
            "/git status x",
        ),
        *("/git log\nx", "/git log \\x", " !ls", "\n/run x", "/git log -n five", "/git show 1 2", "/git diff 1 2 3", "/UNDO"),
        *("/git log -n 0", "/git show 1:src/main.py README.md", "/git log --oneline=x"),
    ],
)
async def test_every_other_command_is_refused(harness: EditHarness, message: str) -> None:
    code, text = error_of(await harness.call(message))
    assert code == "command_not_allowed"
    assert "/git status" in text
    assert await harness.version() == 3
    assert not harness.editor.requests
    assert not harness.model.requests


async def test_undo_takes_back_the_newest_version_and_then_the_one_before(harness: EditHarness) -> None:
    outcome = await harness.call("/undo")
    result = result_of(outcome)
    assert (result["version"], result["answer"]) == (4, "Took back version 3.")
    assert [(file["path"], file["status"]) for file in result["files"]] == [("src/new.py", "deleted")]
    assert outcome.rich == ({"kind": "diff", **result["files"][0]},)
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 2."
    assert (await harness.files.contents())["src/main.py"] == MAIN
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 1."
    assert await harness.files.contents() == {}
    code, message = error_of(await harness.call("/undo"))
    assert (code, message) == ("edit_failed", "There is nothing to undo.")
    assert (await harness.versions())[0].message == "/undo"
    assert (await harness.versions())[0].run_id == "trn_1"


async def test_a_change_after_an_undo_is_the_next_to_be_taken_back(harness: EditHarness) -> None:
    await harness.call("/undo")
    await harness.files.write({"README.md": b"# Other\n"})
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 5."
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 2."


@pytest.mark.parametrize("source", ["", "--source=HEAD~3 ", "--source=HEAD^^^ ", "-s HEAD~9 ", "--source=4 "])
async def test_a_version_before_the_first_is_not_restored(source: str) -> None:
    harness = EditHarness()
    await harness.files.write({"src/main.py": MAIN})
    assert error_of(await harness.call(f"/git restore {source}."))[0] == "version_not_found"
    assert await harness.version() == 1


async def test_undo_skips_versions_that_changed_no_file(harness: EditHarness) -> None:
    same = replace(writes({"src/new.py": b"x = 1\n"}), always=True)
    await harness.files.commit(same)
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 3."
    await harness.files.commit(replace(writes({"README.md": b"# Demo\n"}), always=True))
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 2."


@pytest.mark.parametrize("message", ["/undo", "/git revert HEAD"])
async def test_undo_needs_the_right_to_write(harness: EditHarness, message: str) -> None:
    harness.grants = grants(write=["src/main.py"])
    assert error_of(await harness.call(message))[0] == "path_not_allowed"
    assert await harness.version() == 3


async def test_undo_of_an_empty_workspace_is_refused() -> None:
    assert error_of(await EditHarness().call("/undo"))[0] == "edit_failed"


@pytest.mark.parametrize(
    "message", ["/diff", "/git diff", "/git diff HEAD~1", "/git diff 2 3", "/git diff 2..3", "/git show", "/git show v3"]
)
async def test_the_newest_change_is_shown(harness: EditHarness, message: str) -> None:
    outcome = await harness.call(message)
    result = result_of(outcome)
    assert result["version"] is None
    assert [(file["path"], file["unified"]) for file in result["files"]] == [
        ("src/new.py", "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1 @@\n+x = 1\n")
    ]
    assert [block["kind"] for block in outcome.rich if isinstance(block, dict)] == ["diff"]
    assert await harness.version() == 3


async def test_a_diff_of_paths_shows_only_these(harness: EditHarness) -> None:
    paths = [file["path"] for file in result_of(await harness.call("/git diff 1 3 -- src/main.py"))["files"]]
    assert paths == ["src/main.py"]
    assert len(result_of(await harness.call("/git diff 1 src"))["files"]) == 2
    assert [file["path"] for file in result_of(await harness.call("/git show 1 README.md"))["files"]] == ["README.md"]


async def test_diffs_and_files_outside_the_read_globs_are_not_shown(harness: EditHarness) -> None:
    harness.grants = grants(read=["**", "!src/new.py"])
    assert result_of(await harness.call("/diff"))["files"] == []
    assert error_of(await harness.call("/git show 3:src/new.py"))[0] == "path_not_allowed"


async def test_a_file_of_an_earlier_version_is_shown(harness: EditHarness) -> None:
    assert result_of(await harness.call("/git show 1:src/main.py"))["answer"] == MAIN.decode()
    assert error_of(await harness.call("/git show HEAD:absent"))[0] == "file_not_found"
    assert error_of(await harness.call("/git show HEAD:../x"))[0] == "invalid_path"


async def test_the_log_lists_versions_newest_first(harness: EditHarness) -> None:
    await harness.call("/undo")
    lines = result_of(await harness.call("/git log"))["answer"].splitlines()
    assert [line.split("  ")[0] for line in lines] == ["version 4", "version 3", "version 2", "version 1"]
    assert lines[0].endswith("anna (dir-code)  +0 ~0 -1  /undo")
    assert len(result_of(await harness.call("/git log -2"))["answer"].splitlines()) == 2
    assert len(result_of(await harness.call("/git log --oneline -n 3"))["answer"].splitlines()) == 3
    of_main = result_of(await harness.call("/git log -- src/main.py"))["answer"].splitlines()
    assert [line.split("  ")[0] for line in of_main] == ["version 2", "version 1"]


async def test_the_log_of_a_path_that_the_agent_may_not_read_is_that_of_an_absent_one(harness: EditHarness) -> None:
    harness.grants = grants(read=["**", "!src/main.py"])
    answers = [result_of(await harness.call(f"/git log {path}"))["answer"] for path in ("src/main.py", "absent.py")]
    assert answers == ["There is no such version."] * 2


async def test_the_status_names_the_version(harness: EditHarness) -> None:
    assert result_of(await harness.call("/git status"))["answer"].startswith("Version 3: 3 files, ")
    assert result_of(await EditHarness().call("/git status"))["answer"].startswith("The workspace is empty")


async def test_files_are_removed(harness: EditHarness) -> None:
    assert result_of(await harness.call("/git rm README.md"))["version"] == 4
    assert error_of(await harness.call("/git rm src"))[0] == "edit_failed"
    assert result_of(await harness.call("/git rm -r src/"))["answer"] == "Removed 2 files."
    assert await harness.files.contents() == {}
    assert error_of(await harness.call("/git rm README.md"))[0] == "file_not_found"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/git mv README.md docs/README.md", {"docs/README.md", "src/main.py", "src/new.py"}),
        ("/git mv README.md src", {"src/README.md", "src/main.py", "src/new.py"}),
        ("/git mv README.md docs/", {"docs/README.md", "src/main.py", "src/new.py"}),
        ("/git mv src lib", {"README.md", "lib/main.py", "lib/new.py"}),
        ("/git mv src/ lib/", {"README.md", "lib/src/main.py", "lib/src/new.py"}),
        ("/git mv 'README.md' 'read me.md'", {"read me.md", "src/main.py", "src/new.py"}),
    ],
)
async def test_files_and_folders_are_moved(harness: EditHarness, message: str, expected: set[str]) -> None:
    before = await harness.files.contents()
    assert result_of(await harness.call(message))["version"] == 4
    contents = await harness.files.contents()
    assert contents.keys() == expected
    assert sorted(contents.values()) == sorted(before.values())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("/git mv README.md src/main.py", "edit_failed"),
        ("/git mv README.md ../x", "invalid_path"),
        ("/git mv src/main.py /", "invalid_path"),
        ("/git mv absent x", "file_not_found"),
        ("/git mv README.md SRC/MAIN.py", "invalid_path"),
        ("/git mv README.md .git/config", "invalid_path"),
        ("/git rm ../x", "invalid_path"),
        ("/git restore /etc/passwd", "invalid_path"),
        ("/git restore absent.py", "file_not_found"),
        ("/git revert 9", "version_not_found"),
        ("/git revert main", "version_not_found"),
        ("/git show main", "version_not_found"),
        ("/git restore --source=9 README.md", "version_not_found"),
    ],
)
async def test_a_command_that_cannot_be_carried_out_changes_nothing(harness: EditHarness, message: str, code: str) -> None:
    assert error_of(await harness.call(message))[0] == code
    assert await harness.version() == 3


@pytest.mark.parametrize("message", ["/git mv src/main.py docs/main.py", "/git rm README.md", "/git restore ."])
async def test_a_command_changes_no_path_outside_the_write_globs(harness: EditHarness, message: str) -> None:
    harness.grants = grants(write=["src/main.py"])
    assert error_of(await harness.call(message))[0] == "path_not_allowed"
    assert await harness.version() == 3


async def test_paths_are_restored_from_a_version(harness: EditHarness) -> None:
    assert result_of(await harness.call("/git restore --source=1 src/main.py"))["answer"] == "Restored from version 1."
    assert (await harness.files.contents())["src/main.py"] == MAIN
    assert result_of(await harness.call("/git restore -s 3 src"))["version"] == 5
    assert (await harness.files.contents())["src/main.py"] == MAIN.replace(b"hello", b"world")
    assert result_of(await harness.call("/git restore --source HEAD~4 ."))["version"] == 6
    assert await harness.files.contents() == await harness.files.contents(1)


async def test_without_a_source_paths_are_restored_from_the_version_before(harness: EditHarness) -> None:
    result = result_of(await harness.call("/git restore src/new.py"))
    assert [file["status"] for file in result["files"]] == ["deleted"]
    assert result_of(await harness.call("/git restore src/main.py"))["version"] is None


async def test_one_version_is_reverted_and_later_ones_are_kept(harness: EditHarness) -> None:
    assert result_of(await harness.call("/git revert 2"))["answer"] == "Took back version 2."
    contents = await harness.files.contents()
    assert (contents["src/main.py"], contents["src/new.py"]) == (MAIN, b"x = 1\n")


async def test_a_version_whose_files_changed_since_is_not_reverted(harness: EditHarness) -> None:
    await harness.files.write({"src/main.py": b"other\n"})
    code, message = error_of(await harness.call("/git revert 2"))
    assert (code, "src/main.py" in message) == ("workspace_conflict", True)


async def test_the_files_of_a_command_must_be_paths(harness: EditHarness) -> None:
    assert error_of(await harness.call("/diff", ["../x"]))[0] == "invalid_path"
    assert result_of(await harness.call("/diff", ["anything.py"]))["version"] is None


async def test_versions_before_a_deletion_are_gone(harness: EditHarness) -> None:
    await harness.files.delete()
    assert error_of(await harness.call("/undo"))[0] == "edit_failed"
    await harness.files.write({"a": b"1"})
    assert error_of(await harness.call("/git revert 2"))[0] == "version_not_found"
    assert result_of(await harness.call("/undo"))["answer"] == "Took back version 4."
    assert await harness.files.contents() == {}


@pytest.mark.parametrize("message", ["/undo", "/git revert 5", "/git restore --source=4 .", "/git show 5"])
async def test_a_command_does_not_tell_the_names_of_files_that_cannot_be_read(harness: EditHarness, message: str) -> None:
    await harness.files.write({"src/main.py": b"x = 2\n"})
    await harness.files.write({"src/main.py": b"x = 3\n", "secrets/key-of-acme.pem": b"x"})
    harness.grants = grants(read=("src/",), write=("src/",))
    outcome = await harness.call(message)
    assert "acme" not in repr((outcome.result, outcome.rich))
    assert outcome.ok or error_of(outcome)[0] == "path_not_allowed"


async def test_the_log_of_a_folder_that_cannot_be_read_is_empty(harness: EditHarness) -> None:
    await harness.files.write({"secrets/key.pem": b"x"})
    harness.grants = grants(read=("src/",))
    assert result_of(await harness.call("/git log -- secrets"))["answer"] == "There is no such version."
