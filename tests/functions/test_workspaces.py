"""The routes of workspaces: what each answers, and what each refuses."""

import hashlib
import io
import json
import zipfile

import pytest

from spass.core.paging import PAGE_BYTES
from tests.functions.gateway import Gateway
from tests.functions.workspace_client import ARCHIVE, FILE, WorkspaceClient, pack


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize(
    "body",
    [b"", b"text\n", b"\x00\xff\xfe\x80", b'{"user_id": "bob", "a": NaN}', b"<script>alert(1)</script>", bytes(range(256)) * 400],
)
def test_a_file_is_returned_byte_for_byte_and_never_as_a_page(site: WorkspaceClient, body: bytes) -> None:
    written = site.put("a/b.html", body)
    assert written.json == {"version": 1, "path": "a/b.html", "sha256": sha256(body)}
    assert written.headers["etag"] == f'"{sha256(body)}"'
    reply = site.send("GET", "/file", {"path": "a/b.html"})
    assert (reply.status, reply.content) == (200, body)
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["etag"] == f'"{sha256(body)}"'
    assert reply.headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    "path", ["a b.txt", "a+b=c&d.txt", "100%.txt", "a%20b.txt", "日本語/ファイル.md", "#1?", "'\"<>", "\ufffd.md"]
)
def test_unusual_paths_are_the_same_in_every_route(site: WorkspaceClient, path: str) -> None:
    site.write(path, b"1")
    assert site.read(path) == b"1"
    assert site.paths()[-1] == path
    (file,) = site.json("/diff", path=path)["files"]
    assert (file["path"], file["status"]) == (path, "added")
    assert site.send("DELETE", "/file", {"path": path}).json == {"version": 2, "path": path, "sha256": None}
    assert site.send("POST", "/restore", body={"version": 1, "paths": [path]}).json["added"] == 1


def test_head_of_a_file_and_of_an_archive_has_the_headers_and_no_body(site: WorkspaceClient) -> None:
    site.write("a.md", b"text")
    for tail, query in (("/file", {"path": "a.md"}), ("/archive", {})):
        get, head = (site.send(method, tail, query) for method in ("GET", "HEAD"))
        assert (head.status, head.content) == (200, b"")
        assert {**head.headers, "spass-request-id": ""} == {**get.headers, "spass-request-id": ""}
    assert site.send("HEAD", "/file", {"path": "b.md"}).status == 404


def test_a_client_that_has_the_content_of_a_file_gets_304(site: WorkspaceClient) -> None:
    tag = site.put("a.md", b"one").headers["etag"]
    for value in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        reply = site.send("GET", "/file", {"path": "a.md"}, headers={"If-None-Match": value})
        assert (reply.status, reply.content, reply.headers["etag"]) == (304, b"", tag)
    site.write("a.md", b"two")
    assert site.send("GET", "/file", {"path": "a.md"}, headers={"If-None-Match": tag}).content == b"two"
    assert site.send("GET", "/file", {"path": "a.md", "version": 1}, headers={"If-None-Match": tag}).status == 304
    assert site.send("GET", "/file", {"path": "b.md"}, headers={"If-None-Match": "*"}).code == "file_not_found"
    assert site.send("GET", "/file", {"path": "a.md"}, headers={"If-None-Match": "x"}).code == "invalid_request"


def test_a_workspace_begins_with_a_write_and_counts_on_after_its_deletion(site: WorkspaceClient) -> None:
    for tail in ("", "/tree", "/archive", "/versions", "/diff", "/file?path=a.md"):
        assert site.send("GET", tail).code == "workspace_not_found", tail
    assert site.send("DELETE").json == {"deleted": False}
    site.write("a.md", b"12345")
    site.write("b/c.md", b"678")
    described = site.json()
    assert {**described, "created_at": "", "updated_at": ""} == {
        "id": "site",
        "version": 2,
        "file_count": 2,
        "total_bytes": 8,
        "created_at": "",
        "updated_at": "",
    }
    assert described["created_at"] <= described["updated_at"]
    assert site.gateway.send("GET", "/a1/workspaces").json == {"workspaces": [described], "next_cursor": None}
    assert site.send("DELETE").json == {"deleted": True}
    assert site.send("GET").code == "workspace_not_found"
    assert site.gateway.send("GET", "/a1/workspaces").json["workspaces"] == []
    assert site.write("a.md", b"new") == 3
    assert site.send("GET", "/file", {"path": "a.md", "version": 1}).code == "version_not_found"
    assert [version["version"] for version in site.json("/versions")["versions"]] == [3]


def test_workspaces_are_listed_page_by_page(gateway: Gateway) -> None:
    for name in ("c", "a", "b", "deleted"):
        WorkspaceClient(gateway, name).write("x", b"x")
    WorkspaceClient(gateway, "deleted").send("DELETE")
    first = gateway.send("GET", "/a1/workspaces?limit=2").json
    assert [one["id"] for one in first["workspaces"]] == ["a", "b"]
    second = gateway.send("GET", f"/a1/workspaces?limit=2&cursor={first['next_cursor']}").json
    assert ([one["id"] for one in second["workspaces"]], second["next_cursor"]) == (["c"], None)


def test_a_tree_lists_all_levels_or_as_many_as_depth_says(site: WorkspaceClient) -> None:
    for path in ("README.md", "src/main.py", "src/lib/util.py", "src-old/x"):
        site.write(path, path.encode())
    everything = ["README.md", "src", "src-old", "src-old/x", "src/lib", "src/lib/util.py", "src/main.py"]
    assert site.paths() == everything
    assert site.paths(depth=1) == ["README.md", "src", "src-old"]
    assert site.paths(depth=1000) == everything
    assert site.paths(path="src") == site.paths(path="src/") == ["src/lib", "src/lib/util.py", "src/main.py"]
    assert site.paths(path="src", depth=1) == ["src/lib", "src/main.py"]
    assert site.paths(version=1) == ["README.md"]
    answer = site.json("/tree", depth=1)
    assert answer["version"] == 4
    assert answer["entries"][:2] == [
        {"path": "README.md", "type": "file", "size": 9, "sha256": sha256(b"README.md")},
        {"path": "src", "type": "directory", "size": None, "sha256": None},
    ]
    assert site.send("GET", "/tree", {"path": "nowhere"}).code == "file_not_found"
    assert site.send("GET", "/tree", {"version": 5}).code == "version_not_found"


def test_all_pages_of_a_tree_show_the_version_of_the_first(site: WorkspaceClient) -> None:
    for path in ("a", "b/c", "d"):
        site.write(path, b"1")
    first = site.json("/tree", limit=2)
    assert [entry["path"] for entry in first["entries"]] == ["a", "b"]
    site.write("b/b", b"2")
    cursor = first["next_cursor"]
    second = site.json("/tree", limit=2, cursor=cursor)
    assert (second["version"], [entry["path"] for entry in second["entries"]]) == (3, ["b/c", "d"])
    assert second["next_cursor"] is None
    assert site.json("/tree", cursor=cursor, version=3)["entries"] == second["entries"]
    for other in ({"version": 4}, {"path": "b"}, {"depth": 1}):
        assert site.send("GET", "/tree", {"cursor": cursor, **other}).code == "invalid_request"
    assert WorkspaceClient(site.gateway, "other").put("a", b"").status == 200
    for client in (WorkspaceClient(site.gateway, "other"), WorkspaceClient(site.gateway, token="other-token")):
        client.put("a", b"")
        assert client.send("GET", "/tree", {"cursor": cursor}).code == "invalid_request"
    site.send("DELETE")
    site.write("a", b"1")
    assert site.send("GET", "/tree", {"cursor": cursor}).code == "version_not_found"


def test_versions_name_their_user_and_are_listed_newest_first(gateway: Gateway) -> None:
    site, bob = WorkspaceClient(gateway), WorkspaceClient(gateway, user="bob")
    site.write("a", b"1")
    bob.write("a", b"2")
    site.send("DELETE", "/file", {"path": "a"})
    page = site.json("/versions", limit=2)
    assert [(one["version"], one["user"]) for one in page["versions"]] == [(3, "ada"), (2, "bob")]
    assert [(one["added"], one["changed"], one["deleted"]) for one in page["versions"]] == [(0, 0, 1), (0, 1, 0)]
    last = site.json("/versions", limit=2, cursor=page["next_cursor"])
    (first,) = last["versions"]
    assert {**first, "created_at": ""} == {
        "version": 1,
        "message": None,
        "user": "ada",
        "agent": None,
        "session_id": None,
        "message_id": None,
        "run_id": None,
        "parent_log_id": None,
        "created_at": "",
        "added": 1,
        "changed": 0,
        "deleted": 0,
    }
    assert last["next_cursor"] is None


def test_a_diff_compares_the_two_newest_versions_or_those_that_are_named(site: WorkspaceClient) -> None:
    site.write("a.md", b"one\ntwo\n")
    assert site.json("/diff") == site.json("/diff", **{"from": 0, "to": 1})
    assert (site.json("/diff")["from"], site.json("/diff")["files"][0]["status"]) == (0, "added")
    site.write("a.md", b"one\n2\n")
    site.write("b/c.bin", b"\x00")
    changed = {
        "path": "a.md",
        "status": "changed",
        "added": 1,
        "removed": 1,
        "unified": "--- a/a.md\n+++ b/a.md\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
        "truncated": False,
    }
    binary = {"path": "b/c.bin", "status": "added", "added": 0, "removed": 0, "unified": "", "truncated": True}
    assert site.json("/diff") == {"from": 2, "to": 3, "files": [binary]}
    assert site.json("/diff", **{"from": 1}) == {"from": 1, "to": 3, "files": [changed, binary]}
    assert site.json("/diff", to=2) == {"from": 1, "to": 2, "files": [changed]}
    assert site.json("/diff", **{"from": 1, "path": "b"})["files"] == [binary]
    assert site.json("/diff", **{"from": 1, "path": "a.md"})["files"] == [changed]
    assert site.json("/diff", **{"from": 1, "path": "nowhere"})["files"] == []
    assert site.json("/diff", **{"from": 3, "to": 3})["files"] == []
    backwards = site.json("/diff", **{"from": 3, "to": 1})
    assert [(file["path"], file["status"]) for file in backwards["files"]] == [("a.md", "changed"), ("b/c.bin", "deleted")]
    for query in ({"from": 4}, {"to": 4}, {"from": 4, "to": 1}):
        assert site.send("GET", "/diff", query).code == "version_not_found"


def test_the_first_version_after_a_deletion_is_compared_with_nothing(site: WorkspaceClient) -> None:
    site.write("a", b"1")
    site.send("DELETE")
    site.write("b", b"2")
    answer = site.json("/diff")
    assert (answer["from"], answer["to"], [file["path"] for file in answer["files"]]) == (1, 2, ["b"])
    assert site.send("GET", "/diff", {"from": 1}).code == "version_not_found"


def test_a_diff_of_many_control_characters_fits_into_the_answer_of_a_function(site: WorkspaceClient) -> None:
    line = b"\x01" * 1023 + b"\n"
    for number in range(20):
        site.write(f"{number:02}.txt", line * 63)
    files = site.json("/diff", **{"from": 0})["files"]
    assert len(files) == 20
    assert all(file["added"] == 63 for file in files)
    assert 0 < sum(file["truncated"] for file in files) < 20
    assert len(json.dumps(files).encode()) <= PAGE_BYTES


def test_a_restore_makes_a_new_version_of_everything_or_of_some_paths(site: WorkspaceClient) -> None:
    site.write("a", b"1")
    site.write("b/c", b"1")
    site.write("a", b"2")
    site.write("b/d", b"2")
    site.send("DELETE", "/file", {"path": "b/c"})
    reply = site.send("POST", "/restore", body={"version": 2, "paths": ["b/"]})
    assert reply.json == {"version": 6, "added": 1, "changed": 0, "deleted": 1}
    assert site.json("/versions")["versions"][0]["message"] == "Restore b of version 2"
    assert (site.paths(), site.read("a")) == (["a", "b", "b/c"], b"2")
    assert site.send("POST", "/restore", body={"version": 3}).json == {"version": 7, "added": 0, "changed": 0, "deleted": 0}
    assert site.send("POST", "/restore", body={"version": 1}).json == {"version": 8, "added": 0, "changed": 1, "deleted": 1}
    assert site.json("/versions")["versions"][0]["message"] == "Restore version 1"
    assert (site.paths(), site.read("a")) == (["a"], b"1")
    assert site.read("b/d", version=4) == b"2"
    for body, code in (
        ({"version": 9}, "version_not_found"),
        ({"version": 1, "paths": ["nowhere"]}, "file_not_found"),
        ({"version": 1, "paths": ["../a"]}, "invalid_path"),
        ({"version": 1, "paths": [""]}, "invalid_path"),
        ({"version": 1, "paths": []}, "invalid_request"),
        ({"version": 0}, "invalid_request"),
        ({"version": "1"}, "invalid_request"),
        ({"paths": ["a"]}, "invalid_request"),
        ({"version": 1, "path": "a"}, "invalid_request"),
    ):
        assert site.send("POST", "/restore", body=body).code == code, body
    assert site.json()["version"] == 8


def test_a_repeated_restore_with_the_same_key_is_one_version(site: WorkspaceClient) -> None:
    site.write("a", b"1")
    site.write("a", b"2")
    key = {"Idempotency-Key": "k"}
    first = site.send("POST", "/restore", body={"version": 1}, headers=key)
    site.write("a", b"3")
    again = site.send("POST", "/restore", body={"version": 1}, headers=key)
    assert first.json["version"] == 3
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    assert (site.read("a"), site.json()["version"]) == (b"3", 4)
    assert site.send("POST", "/restore", body={"version": 2}, headers=key).code == "idempotency_key_reused"


def test_an_archive_of_a_version_holds_its_files(site: WorkspaceClient) -> None:
    files = {"a.md": b"text " * 999, "b/empty": b"", "日本語.bin": bytes(range(256))}
    for path, body in files.items():
        site.write(path, body)
    site.write("a.md", b"later")
    reply = site.send("GET", "/archive", {"version": 3})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/zip")
    assert reply.headers["x-content-type-options"] == "nosniff"
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files
    assert site.send("GET", "/archive", {"version": 9}).code == "version_not_found"


def test_an_archive_replaces_all_files_or_adds_to_them_in_one_version(site: WorkspaceClient) -> None:
    assert site.put_archive({"a": b"1", "b/c": b"1"}).json == {"version": 1, "added": 2, "changed": 0, "deleted": 0}
    merged = site.put_archive({"a": b"2", "d": b"2"}, mode="merge")
    assert merged.json == {"version": 2, "added": 1, "changed": 1, "deleted": 0}
    assert (site.paths(), site.read("a"), site.read("b/c")) == (["a", "b", "b/c", "d"], b"2", b"1")
    assert site.put_archive({"a": b"2", "e": b"3"}).json == {"version": 3, "added": 1, "changed": 0, "deleted": 2}
    assert site.paths() == ["a", "e"]
    assert site.put_archive({"e": b"3", "a": b"2"}).json == {"version": 4, "added": 0, "changed": 0, "deleted": 0}
    archive = site.send("GET", "/archive").content
    assert site.send("PUT", "/archive", raw=archive, headers=ARCHIVE).json["version"] == 5
    assert site.put_archive({}).json == {"version": 6, "added": 0, "changed": 0, "deleted": 2}
    assert site.paths() == []


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"../a": b""}, "invalid_path"),
        ({"a": b"", "A": b""}, "invalid_path"),
        ({"readme.md": b""}, "invalid_path"),  # the workspace holds README.md
        ({"README.md/x": b""}, "invalid_path"),
        ({"a": bytes(4 * 1024 * 1024 + 1)}, "workspace_limit"),
        ({f"{number}": bytes(4 * 1024 * 1024) for number in range(26)}, "workspace_limit"),
        ({f"{number}": b"" for number in range(5000)}, "workspace_limit"),
    ],
    ids=["a path", "names by case", "a name of the tree by case", "below a file", "a file", "bytes in all", "files"],
)
def test_an_archive_beyond_a_rule_writes_nothing(site: WorkspaceClient, files: dict[str, bytes], code: str) -> None:
    site.write("README.md", b"1")
    before = site.gateway.stored()
    reply = site.put_archive(files, mode="merge")
    assert (reply.status, reply.code) == (400, code)
    assert site.gateway.stored() == before


@pytest.mark.parametrize(
    "content", [b"", b"text", pack({"a": b"1"})[:-1], pack({"a": b"1" * 99})[10:]], ids=["empty", "text", "end cut", "start cut"]
)
def test_a_body_that_is_not_a_zip_is_refused(site: WorkspaceClient, content: bytes) -> None:
    assert site.send("PUT", "/archive", raw=content, headers=ARCHIVE).code == "invalid_archive"
    for mode in ("mode=add", "mode=", "mode=merge&mode=merge"):
        assert site.send("PUT", f"/archive?{mode}", raw=pack({"a": b"1"}), headers=ARCHIVE).code == "invalid_request"
    reply = site.send("PUT", "/archive", raw=pack({"a": b"1"}), headers=FILE)
    assert (reply.code, "application/zip" in reply.json["error"]["message"]) == ("invalid_request", True)
    assert site.send("GET").code == "workspace_not_found"


@pytest.mark.parametrize(
    ("tail", "query", "param"),
    [
        ("/tree", "depth=0", "depth"),
        ("/tree", "depth=1001", "depth"),
        ("/tree", "depth=1.0", "depth"),
        ("/tree", "depth=", "depth"),
        ("/tree", "depth=1&depth=1", "depth"),
        ("/tree", "version=0", "version"),
        ("/tree", "version=-1", "version"),
        ("/tree", "version=%2B1", "version"),
        ("/tree", "version=01", "version"),
        ("/tree", "version=1_0", "version"),
        ("/tree", "version=latest", "version"),
        ("/tree", "version=" + "9" * 5000, "version"),
        ("/tree", "path=&path=", "path"),
        ("/file", "path=a&version=", "version"),
        ("/file", "path=a&version=1&version=1", "version"),
        ("/file", "path=a&path=a", "path"),
        ("/file", "", "path"),
        ("/archive", "version=x", "version"),
        ("/diff", "from=x", "from"),
        ("/diff", "from=1&from=1", "from"),
        ("/diff", "to=0", "to"),
        ("/diff", "to=1&to=1", "to"),
        ("/diff", "path=a&path=b", "path"),
    ],
)
def test_a_bad_query_is_refused_with_its_place(site: WorkspaceClient, tail: str, query: str, param: str) -> None:
    site.write("a", b"1")
    reply = site.send("GET", f"{tail}?{query}")
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", param)
    assert reply.json["error"]["details"]["errors"][0]["loc"] == ["query", param]


def test_a_file_of_4_mib_is_written_and_a_larger_one_is_not(site: WorkspaceClient) -> None:
    largest = b"\xff" * (4 * 1024 * 1024)
    site.write("a", largest)
    assert site.read("a") == largest
    assert site.put("b", largest + b"x").code == "payload_too_large"
    assert site.send("PUT", "/file", {"path": "b"}, raw=b"x", headers={"Content-Type": "text/plain"}).code == "invalid_request"
    assert site.json()["version"] == 1


def test_each_write_makes_a_version_also_of_the_same_content(site: WorkspaceClient) -> None:
    site.write("a", b"1")
    assert site.put("a", b"1").json == {"version": 2, "path": "a", "sha256": sha256(b"1")}
    restored = site.send("POST", "/restore", body={"version": 2}).json
    assert restored == {"version": 3, "added": 0, "changed": 0, "deleted": 0}
    assert [version["version"] for version in site.json("/versions")["versions"]] == [3, 2, 1]


def test_ids_follow_the_rules_of_the_ids_of_indices(gateway: Gateway) -> None:
    for name in ("a" * 200, "-x", "a%20b", "%C3%BC", "."):
        reply = gateway.send("PUT", f"/a1/workspaces/{name}/file?path=a", raw=b"x", headers=FILE)
        assert (reply.status, reply.code) == (400, "invalid_request"), name
    assert gateway.send("GET", "/a1/workspaces").json["workspaces"] == []
