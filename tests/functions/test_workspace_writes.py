"""Writes to one workspace at the same time and with preconditions: none is lost, and none is made against its condition."""

import hashlib
from collections.abc import Awaitable, Mapping

import pytest

from tests.functions.gateway import Gateway, Reply
from tests.functions.workspace_client import ARCHIVE, FILE, WorkspaceClient, pack

WRITERS = 8
OTHER = f'"{"0" * 64}"'


def tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()}"'


@pytest.mark.parametrize(
    ("headers", "holds"),
    [
        ({"If-Match": tag(b"1")}, True),
        ({"If-Match": f"{OTHER}, {tag(b'1')}"}, True),
        ({"If-Match": "*"}, True),
        ({"If-Match": OTHER}, False),
        ({"If-Match": f"W/{tag(b'1')}"}, False),
        ({"If-None-Match": "*"}, False),
        ({"If-None-Match": tag(b"1")}, False),
        ({"If-None-Match": OTHER}, True),
        ({"If-Match": tag(b"1"), "If-None-Match": OTHER}, True),
        ({"If-Match": "*", "If-None-Match": "*"}, False),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_file_is_written_if_its_precondition_holds(
    site: WorkspaceClient, method: str, headers: Mapping[str, str], holds: bool
) -> None:
    site.write("a", b"1")
    raw = b"2" if method == "PUT" else None
    reply = site.send(method, "/file", {"path": "a"}, raw=raw, headers={**headers, **(FILE if raw else {})})
    if holds:
        assert (reply.status, reply.json["version"]) == (200, 2)
        return
    assert (reply.status, reply.code, reply.json["error"]["details"]) == (409, "workspace_conflict", {"paths": ["a"]})
    assert (site.read("a"), site.json()["version"]) == (b"1", 1)


def test_preconditions_of_an_absent_file(site: WorkspaceClient) -> None:
    for headers in ({"If-Match": "*"}, {"If-Match": OTHER}):
        assert site.put("a", b"1", headers).code == "workspace_conflict"
    assert site.send("GET").code == "workspace_not_found"
    assert site.send("DELETE", "/file", {"path": "a"}, headers={"If-Match": "*"}).code == "workspace_not_found"
    assert site.put("a", b"1", {"If-None-Match": "*"}).json["version"] == 1
    assert site.put("b", b"1", {"If-None-Match": OTHER}).json["version"] == 2
    for headers in ({}, {"If-Match": "*"}, {"If-None-Match": "*"}):
        assert site.send("DELETE", "/file", {"path": "c"}, headers=headers).code == "file_not_found"
    for name in ("If-Match", "If-None-Match"):
        reply = site.put("a", b"2", {name: "unquoted"})
        assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", name)
    assert site.json()["version"] == 2


@pytest.mark.parametrize("path", ["src/main.py", "infra/prod.yaml", "keys/id.pem", "home/.env", "lib/arn:aws:x.so"])
def test_errors_name_the_paths_as_they_are(site: WorkspaceClient, path: str) -> None:
    site.write(path, b"1")
    conflict = site.put(path, b"2", {"If-None-Match": "*"}).json["error"]
    assert (conflict["code"], conflict["details"]) == ("workspace_conflict", {"paths": [path]})
    absent = site.send("GET", "/file", {"path": f"b/{path}"})
    below = site.put(f"{path}/c", b"3")
    assert [reply.code for reply in (absent, below)] == ["file_not_found", "invalid_path"]
    assert all(path in reply.json["error"]["message"] for reply in (absent, below))


def put(gateway: Gateway, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Awaitable[Reply]:
    return gateway.send_async("PUT", f"/a1/workspaces/site/file?path={path}", raw=body, headers={**FILE, **(headers or {})})


def test_of_writers_with_the_same_precondition_one_wins(site: WorkspaceClient) -> None:
    site.write("a", b"0")
    for headers, path in (({"If-Match": tag(b"0")}, "a"), ({"If-None-Match": "*"}, "new")):
        before = site.json()["version"]
        replies = site.gateway.send_together(
            [put(site.gateway, path, b"%d" % (number + 1), headers) for number in range(WRITERS)]
        )
        assert sorted(reply.code or "" for reply in replies) == ["", *["workspace_conflict"] * (WRITERS - 1)]
        (winner,) = [reply for reply in replies if reply.status == 200]
        assert winner.json["version"] == site.json()["version"] == before + 1
        assert tag(site.read(path)) == f'"{winner.json["sha256"]}"'


def test_writers_of_different_paths_all_win(site: WorkspaceClient) -> None:
    headers: list[Mapping[str, str]] = [{}, {"If-None-Match": "*"}]
    replies = site.gateway.send_together(
        [put(site.gateway, f"f{number}", b"%d" % number, headers[number % 2]) for number in range(WRITERS)]
    )
    assert sorted(reply.json["version"] for reply in replies) == [*range(1, WRITERS + 1)]
    assert [site.read(f"f{number}") for number in range(WRITERS)] == [b"%d" % number for number in range(WRITERS)]
    deletions = [site.gateway.send_async("DELETE", f"/a1/workspaces/site/file?path=f{number}") for number in range(WRITERS)]
    assert {reply.status for reply in site.gateway.send_together(deletions)} == {200}
    assert site.paths() == []


def test_of_two_deletions_of_one_file_one_finds_it(site: WorkspaceClient) -> None:
    site.write("a", b"1")
    requests = [site.gateway.send_async("DELETE", "/a1/workspaces/site/file?path=a") for _ in range(2)]
    assert sorted(reply.code or "" for reply in site.gateway.send_together(requests)) == ["", "file_not_found"]
    assert site.json()["version"] == 2


def test_a_precondition_that_holds_for_any_file_excludes_no_writer(site: WorkspaceClient) -> None:
    site.write("a", b"0")
    for headers in ({"If-Match": "*"}, {"If-None-Match": OTHER}):
        before = site.json()["version"]
        bodies = [b"%d of %d" % (number, before) for number in range(WRITERS)]
        replies = site.gateway.send_together([put(site.gateway, "a", body, headers) for body in bodies])
        assert sorted(reply.json["version"] for reply in replies) == [*range(before + 1, before + WRITERS + 1)]
        last = max(replies, key=lambda reply: int(reply.json["version"]))
        assert tag(site.read("a")) == f'"{last.json["sha256"]}"'


def test_an_archive_keeps_what_other_writers_write_meanwhile(site: WorkspaceClient) -> None:
    merge = site.gateway.send_async(
        "PUT", "/a1/workspaces/site/archive?mode=merge", raw=pack({"x": b"x", "y": b"y"}), headers=ARCHIVE
    )
    writes = [put(site.gateway, f"f{number}", b"1") for number in range(WRITERS)]
    assert {reply.status for reply in site.gateway.send_together([*writes, merge])} == {200}
    assert site.paths() == [*(f"f{number}" for number in range(WRITERS)), "x", "y"]
