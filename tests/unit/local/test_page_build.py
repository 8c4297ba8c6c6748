"""The build of the page: the same sources are the same bytes, and a reader finds a whole build or the one before."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from local.page_build import PageNotBuilt, build_page
from local.page_reload import PageReload

ROOT: Final = Path(__file__).resolve().parents[3]
MAX_FILES: Final = 6
"""What a browser asks for until a message can be written, without the calls of the API."""


def repository(folder: Path) -> Path:
    """Copy what a build needs into ``folder``."""
    shutil.copytree(ROOT / "ui", folder / "ui")
    shutil.copyfile(ROOT / "package-lock.json", folder / "package-lock.json")
    (folder / "node_modules").symlink_to(ROOT / "node_modules")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path)


def manifest_of(root: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((root / ".page" / "manifest.json").read_text())
    return found


def files_of(root: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / ".page").iterdir()}


def change(root: Path, file: str, old: str, new: str) -> None:
    source = (root / "ui" / file).read_text(encoding="utf-8")
    assert old in source
    (root / "ui" / file).write_text(source.replace(old, new), encoding="utf-8")


def test_the_same_sources_are_the_same_bytes_in_every_folder(tmp_path: Path) -> None:
    first, second = repository(tmp_path / "first"), repository(tmp_path / "second" / "Büro mit Blank")
    build_page(first)
    build_page(second)
    assert files_of(first) == files_of(second)


def test_each_view_is_a_file_and_the_first_use_loads_few(root: Path) -> None:
    build_page(root)
    manifest = manifest_of(root)
    names = {name.partition("-")[0] for name in manifest["files"]}
    assert {"app", "chat", "approvals", "workspaces", "indices", "usage", "highlight", "page", "icon"} <= names
    page = (root / ".page" / manifest["page"]).read_text(encoding="utf-8")
    named = {name for name in manifest["files"] if f'"ui/{name}"' in page}
    assert {name.partition("-")[0] for name in named} == {"app", "chat", "chunk", "page", "icon"}
    assert len(named) + 1 <= MAX_FILES


def test_every_script_and_style_has_a_source_map_that_is_not_served(root: Path) -> None:
    build_page(root)
    files = manifest_of(root)["files"]
    mapped = {path.name.removesuffix(".map") for path in (root / ".page").glob("*.map")}
    assert mapped == {name for name in files if not name.endswith(".svg")}
    assert not [name for name in files if name.endswith(".map")]


def test_a_changed_source_has_another_name_and_the_old_files_go(root: Path) -> None:
    build_page(root)
    before = set(files_of(root))
    with (root / "ui" / "usage.js").open("a") as source:
        source.write("globalThis.changed = true;\n")
    build_page(root)
    after = set(files_of(root))
    gone, new = before - after, after - before
    assert {name.partition("-")[0] for name in gone} == {name.partition("-")[0] for name in new} == {"usage", "app", "index"}


def test_an_unchanged_page_is_not_built_again(root: Path) -> None:
    build_page(root)
    (root / "node_modules").unlink()  # a build would fail now
    build_page(root)


def test_a_build_with_a_missing_file_is_made_anew(root: Path) -> None:
    build_page(root)
    whole = files_of(root)
    (root / ".page" / next(iter(manifest_of(root)["files"]))).unlink()
    build_page(root)
    assert files_of(root) == whole


@pytest.mark.parametrize("damage", ["", "{", '{"sources": "x'])
def test_a_damaged_manifest_is_no_build(root: Path, damage: str) -> None:
    build_page(root)
    whole = files_of(root)
    (root / ".page" / "manifest.json").write_text(damage)
    build_page(root)
    assert files_of(root) == whole


def test_what_an_interrupted_build_left_goes_with_the_next_one(root: Path) -> None:
    (root / ".page").mkdir()
    (root / ".page" / "app-HALF.js").write_text("half")
    build_page(root)
    assert "app-HALF.js" not in files_of(root)


def test_without_the_libraries_the_message_says_what_to_run(root: Path) -> None:
    (root / "node_modules").unlink()
    with pytest.raises(PageNotBuilt, match="libraries of the page are not installed"):
        build_page(root)
    assert not (root / ".page" / "manifest.json").exists()


@pytest.mark.parametrize("library", ["lit-html", "entities", "esbuild"])
def test_libraries_of_an_earlier_lock_file_do_not_pass_for_its_build(root: Path, library: str) -> None:
    """A registry may be away just when the lock file has changed."""
    build_page(root)
    whole = files_of(root)
    lock = json.loads((root / "package-lock.json").read_text())
    lock["packages"][f"node_modules/{library}"]["version"] = "99.0.0"
    (root / "package-lock.json").write_text(json.dumps(lock))
    with pytest.raises(PageNotBuilt, match=r"not those of package-lock\.json\. Run: make page"):
        build_page(root)
    assert files_of(root) == whole


def test_a_page_that_names_a_file_that_is_not_built_is_a_mistake(root: Path) -> None:
    change(root, "index.html", "ui/page.css", "ui/chat.css")
    (note,) = PageReload(root).notes
    assert "names 'chat.css'" in note


def test_a_mistake_in_a_source_is_shown_and_the_last_build_stays(root: Path) -> None:
    build_page(root)
    whole = files_of(root)
    change(root, "usage.js", "import ", "impord ")
    with pytest.raises(PageNotBuilt, match=r"ui/usage\.js:3"):
        build_page(root)
    assert files_of(root) == whole
    assert not [*root.glob(".page-*")]


def test_a_place_that_cannot_be_written_is_named(root: Path) -> None:
    (root / ".page").write_text("a file in its place")
    with pytest.raises(PageNotBuilt, match="cannot be written"):
        build_page(root)


def test_a_running_gateway_builds_a_change_when_it_is_whole(root: Path) -> None:
    reload = PageReload(root)
    assert reload.notes == reload.poll() == []
    first = manifest_of(root)
    with (root / "ui" / "page.css").open("a") as style:
        style.write("p { color: red; }\n")
        style.flush()
        assert reload.poll() == []  # an editor may still be writing
        assert manifest_of(root) == first
        style.write("b { color: red; }\n")
    assert reload.poll() == []
    assert reload.poll() == ["ui/: the page is built anew; reload it"]
    assert manifest_of(root) != first
    assert reload.poll() == []


def test_a_running_gateway_reports_a_mistake_once_and_the_next_version_is_built(root: Path) -> None:
    reload = PageReload(root)
    first = manifest_of(root)
    change(root, "usage.js", "import ", "impord ")
    reports = [line for _ in range(4) for line in reload.poll()]
    assert len(reports) == 1
    assert reports[0].startswith("The page at /ui could not be built.")
    assert manifest_of(root) == first
    change(root, "usage.js", "impord ", "import ")
    (root / "ui" / "extra.js").write_text("")
    assert [line for _ in range(4) for line in reload.poll()] == ["ui/: the page is built anew; reload it"]


def test_a_gateway_without_the_libraries_says_so_and_starts(root: Path) -> None:
    (root / "node_modules").unlink()
    (note,) = PageReload(root).notes
    assert "Run: make page" in note
