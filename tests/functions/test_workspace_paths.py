"""Hostile paths at every route of workspaces: 400 ``invalid_path``, and nothing is written."""

from collections.abc import Callable

import pytest

from tests.functions.gateway import Gateway, Reply
from tests.functions.workspace_client import FILE, WorkspaceClient
from tests.hostile_paths import CLASHES, HOSTILE, QUERIES, SENDABLE

Send = Callable[[WorkspaceClient, str], Reply]

FILE_ROUTES: dict[str, Send] = {
    "GET file": lambda site, query: site.send("GET", f"/file?{query}"),
    "PUT file": lambda site, query: site.send("PUT", f"/file?{query}", raw=b"x", headers=FILE),
    "DELETE file": lambda site, query: site.send("DELETE", f"/file?{query}"),
}
FOLDER_ROUTES: dict[str, Send] = {
    "GET tree": lambda site, query: site.send("GET", f"/tree?{query}"),
    "GET diff": lambda site, query: site.send("GET", f"/diff?{query}"),
}
# These name a folder: the root, or one with a slash at its end.
FOLDERS = {"path=", "path=a%2F", "path=src%2Fmain.py%2F"}


@pytest.fixture
def site(gateway: Gateway) -> WorkspaceClient:
    site = WorkspaceClient(gateway)
    site.put_archive({"README.md": b"1", "src/main.py": b"2"})
    return site


@pytest.mark.parametrize("route", [*FILE_ROUTES, *FOLDER_ROUTES])
def test_a_hostile_path_is_refused_by_every_route(site: WorkspaceClient, route: str) -> None:
    before = site.gateway.stored()
    for query in QUERIES:
        if route in FOLDER_ROUTES and query in FOLDERS:
            continue
        reply = (FILE_ROUTES | FOLDER_ROUTES)[route](site, query)
        assert (reply.status, reply.code) == (400, "invalid_path"), query
        assert reply.json["error"]["param"] == "path"
        assert len(reply.content) < 2000
    assert site.gateway.stored() == before


def test_a_restore_refuses_hostile_paths(site: WorkspaceClient) -> None:
    before = site.gateway.stored()
    for path in SENDABLE:
        if path.removesuffix("/") in {"a", "src/main.py"}:
            continue
        reply = site.send("POST", "/restore", body={"version": 1, "paths": ["README.md", path]})
        assert (reply.status, reply.code) == (400, "invalid_path"), path
    assert site.gateway.stored() == before


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_archive_with_a_hostile_path_is_refused_as_a_whole(site: WorkspaceClient, kind: str) -> None:
    before = site.gateway.stored()
    for path in HOSTILE[kind]:
        if path in SENDABLE and len(path) < 2**16 and "\0" not in path and path and not path.endswith("/"):
            reply = site.put_archive({"good.md": b"x", path: b"x"}, mode="merge")
            assert (reply.status, reply.code) == (400, "invalid_path"), path
    assert site.gateway.stored() == before


def test_a_path_cannot_be_a_file_and_a_folder(site: WorkspaceClient) -> None:
    before = site.gateway.stored()
    for route, send in FILE_ROUTES.items():
        for path in ("src", "README.md/x", "src/main.py/x/y"):
            reply = send(site, f"path={path}")
            assert (reply.status, reply.code) == (400, "invalid_path"), (route, path)
    for path in ("README.md", "README.md/x", "src/main.py"):
        assert FOLDER_ROUTES["GET tree"](site, f"path={path}").code == "invalid_path"
    assert FOLDER_ROUTES["GET diff"](site, "path=README.md/x").code == "invalid_path"
    assert site.gateway.stored() == before


@pytest.mark.parametrize(("one", "other"), CLASHES)
def test_paths_that_one_tree_cannot_have_are_refused_in_any_order(gateway: Gateway, one: str, other: str) -> None:
    for number, (first, second) in enumerate(((one, other), (other, one))):
        site = WorkspaceClient(gateway, f"w{number}")
        site.write(first, b"1")
        reply = site.put(second, b"2")
        if first == second:
            assert reply.status == 200
        else:
            assert (reply.status, reply.code) == (400, "invalid_path")
            assert (site.read(first), site.json()["version"]) == (b"1", 1)


@pytest.mark.parametrize("query", ["path=%ff", "path=a%c3", "path=%ED%A0%80"])
def test_a_long_route_refuses_a_query_that_is_not_utf_8(site: WorkspaceClient, query: str) -> None:
    assert site.send("GET", f"/file?{query}").code == "invalid_path"
    assert site.send("GET", "/file?path=a&x=%fe").code == "invalid_request", "the route takes no x"
