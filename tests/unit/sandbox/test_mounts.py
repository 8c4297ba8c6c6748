"""Mounts are resolved and checked: no credentials, nothing outside the roots, nothing that moved meanwhile."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from spass.core.messages import Json
from spass.sandbox.mounts import BLOCKED, MountRefused, check_unchanged, read_allow_list, resolve_mounts
from tests.hostile_mounts import HARMLESS_NAMES, SECRET_NAMES, Rules, allowed, build_world, hostile_paths


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_world(tmp_path_factory.mktemp("world"))


def write(folder: Path, content: Json) -> str:
    path = folder / "allow.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def files(world: Path) -> dict[str, tuple[Json, Rules]]:
    """Return allow-lists, as their files and as the oracle reads them."""
    projects, kept, shared = world / "projects", world / "projects/kept", world / "shared"
    nested: Json = [
        {"path": str(projects), "read_only": False},
        {"path": str(kept), "read_only": True},
        {"path": str(shared)},
    ]
    through_link: Json = [{"path": str(world / "outside/to projects"), "read_only": False}, {"path": f"{shared}/../shared/"}]
    twice: Json = [{"path": str(projects), "read_only": False}, {"path": str(projects), "read_only": True}]
    return {
        "no file": (None, Rules(None)),
        "no roots": ({"roots": [], "blocked_patterns": []}, Rules(())),
        "empty": ({}, Rules(())),
        "nested roots": ({"roots": nested}, Rules(((projects, False), (kept, True), (shared, True)))),
        "links as roots": ({"roots": through_link}, Rules(((projects, False), (shared, True)))),
        "one root twice": ({"roots": twice}, Rules(((projects, True),))),
        "everything": ({"roots": [{"path": "/", "read_only": False}]}, Rules(((Path("/"), False),))),
        "a missing root": ({"roots": [{"path": "/no such root", "read_only": False}]}, Rules(((Path("/no such root"), False),))),
        "more names": (
            {"roots": [{"path": str(world)}], "blocked_patterns": ["DATA", "file.CSV"]},
            Rules(((world, True),), ("data", "file.csv")),
        ),
    }


def test_the_corpus_has_five_hundred_paths(world: Path) -> None:
    assert len(hostile_paths(world)) >= 500


@pytest.mark.parametrize("name", files(Path("/")))
def test_nothing_is_mounted_that_must_not_be(world: Path, tmp_path: Path, name: str) -> None:
    content, rules = files(world)[name]
    allow_list = read_allow_list("" if content is None else write(tmp_path, content))
    judged: dict[str, tuple[str, bool] | None] = {}
    unnamed: list[str] = []
    for given in hostile_paths(world):
        try:
            [mount] = resolve_mounts([given], allow_list)
            judged[given] = mount.path, mount.writable
        except MountRefused as refused:
            judged[given] = None
            unnamed += [given] if repr(given) not in str(refused) else []
    assert unnamed == [], "each message names its path"
    assert judged == {given: allowed(given, rules) for given in judged}
    assert any(judged.values()) == (name not in ("no roots", "empty", "a missing root"))
    assert None in judged.values()


def test_the_blocked_names_are_those_of_the_page() -> None:
    assert set(BLOCKED) == {
        *(".ssh", ".env", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "credentials*", ".netrc", ".npmrc", ".pypirc"),
        *(".gnupg", ".aws", ".azure", ".kube", ".docker", "gcloud"),
    }


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_is_blocked_in_every_place_and_case(world: Path, name: str) -> None:
    for path in (f"projects/{name}", f"projects/{name}/inner", f"outside/{name}/../{name}", f"projects/{name}/../app"):
        with pytest.raises(MountRefused, match="blocked pattern"):
            resolve_mounts([f"{world}/{path}"], read_allow_list(""))


@pytest.mark.parametrize(("path", "mounted"), [*((name, name) for name in HARMLESS_NAMES), ("to app/../app/src/..", "app")])
def test_other_names_and_targets_of_links_are_mounted_read_only(world: Path, path: str, mounted: str) -> None:
    [mount] = resolve_mounts([f"{world}/projects/{path}"], read_allow_list(""))
    assert mount.argument == f"{world}/projects/{mounted}:{world}/projects/{mounted}:ro"


def test_one_path_under_two_names_is_mounted_once(world: Path, tmp_path: Path) -> None:
    names = [f"{world}/projects/app", f"{world}/projects/to app", f"{world}/projects/app/"]
    assert len(resolve_mounts(names, read_allow_list(""))) == 1
    allow_list = read_allow_list(write(tmp_path, {"roots": [{"path": str(world), "read_only": False}]}))
    with pytest.raises(MountRefused, match="mounted twice"):
        resolve_mounts([*names, f"{names[1]}:rw"], allow_list)


def test_a_read_only_root_is_not_writable_through_the_folder_around_it(world: Path, tmp_path: Path) -> None:
    content, _ = files(world)["nested roots"]
    allow_list = read_allow_list(write(tmp_path, content))
    with pytest.raises(MountRefused, match="for writing"):
        resolve_mounts([f"{world}/projects:rw"], allow_list)
    [mount] = resolve_mounts([f"{world}/projects/app:rw"], allow_list)
    assert mount.argument.endswith(":rw")


BAD_FILES: Final = {
    "": "is not valid: it is not valid JSON",
    "{": "it is not valid JSON",
    "[]": "it must be one JSON object",
    "null": "it must be one JSON object",
    '{"roots": [], "roots": []}': "stands twice",
    '{"root": []}': "unknown key 'root'; the keys are blocked_patterns, roots",
    '{"roots": {}}': "'roots' must be a list",
    '{"roots": null}': "'roots' must be a list",
    '{"roots": ["/data"]}': r"'roots\[0\]' must be an object",
    '{"roots": [{"path": "/data", "readonly": true}]}': r"unknown key 'roots\[0\]\.readonly'",
    '{"roots": [{"read_only": true}]}': r"'roots\[0\]\.path' must be an absolute path",
    '{"roots": [{"path": "data"}]}': r"'roots\[0\]\.path' must be an absolute path",
    '{"roots": [{"path": "~/data"}]}': r"'roots\[0\]\.path' must be an absolute path",
    '{"roots": [{"path": ""}]}': r"'roots\[0\]\.path' must be an absolute path",
    '{"roots": [{"path": "/a\\u0000b"}]}': r"'roots\[0\]\.path' must be an absolute path",
    '{"roots": [{"path": "/data", "read_only": "no"}]}': r"'roots\[0\]\.read_only' must be true or false",
    '{"roots": [{"path": "/data", "read_only": null}]}': r"'roots\[0\]\.read_only' must be true or false",
    '{"blocked_patterns": "x"}': "'blocked_patterns' must be a list",
    '{"blocked_patterns": [1]}': r"'blocked_patterns\[0\]' must be the name",
    '{"blocked_patterns": [""]}': r"'blocked_patterns\[0\]' must be the name",
    '{"blocked_patterns": ["a/b"]}': r"'blocked_patterns\[0\]' must be the name",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_a_bad_allow_list_is_refused_by_name(tmp_path: Path, content: str) -> None:
    with pytest.raises(MountRefused, match=BAD_FILES[content]) as refused:
        read_allow_list(write(tmp_path, content))
    assert "allow.json" in str(refused.value)


def test_an_allow_list_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"roots": [{"path": "/\xe4"}]}')
    for path, reason in ((tmp_path, "directory"), (tmp_path / "none", "No such file"), (tmp_path / "latin", "UTF-8")):
        with pytest.raises(MountRefused, match=f"{path.name}.*{reason}"):
            read_allow_list(str(path))


@pytest.fixture
def flipping(tmp_path: Path) -> Iterator[Path]:
    """A path that is a folder and a link to secrets in turn, as fast as a thread can change it."""
    path, folder, link = tmp_path / "data", tmp_path / "folder", tmp_path / "link"
    secrets = tmp_path / ".ssh"
    secrets.mkdir()
    path.mkdir()
    link.symlink_to(secrets)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            path.rename(folder)
            link.rename(path)
            path.rename(link)
            folder.rename(path)

    thread = threading.Thread(target=flip)
    thread.start()
    yield path
    stop.set()
    thread.join()


def test_a_path_that_changes_while_it_is_checked_never_leads_to_secrets(flipping: Path) -> None:
    mounted, refused = set(), 0
    for _ in range(2000):
        try:
            mounted |= {mount.path for mount in resolve_mounts([str(flipping)], read_allow_list(""))}
        except MountRefused:
            refused += 1
    assert mounted <= {str(flipping)}, "this path, and not where the link leads"
    assert refused, "the link was seen"


@pytest.mark.parametrize("change", ["link", "removed", "another folder", "a link above"])
def test_a_path_that_changed_since_its_check_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "parent/data"
    path.mkdir(parents=True)
    other = tmp_path / "other/data"
    other.mkdir(parents=True)
    mounts = resolve_mounts([str(path)], read_allow_list(""))
    check_unchanged(mounts)
    if change == "a link above":
        path.parent.rename(tmp_path / "moved")
        (tmp_path / "parent").symlink_to(tmp_path / "other")
    else:
        path.rename(tmp_path / "moved")
        if change == "link":
            path.symlink_to(other)
        elif change == "another folder":
            path.mkdir()
    with pytest.raises(MountRefused, match="changed"):
        check_unchanged(mounts)


def test_a_relative_path_is_not_the_name_of_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(MountRefused, match="must be absolute"):
        resolve_mounts(["data"], read_allow_list(""))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
