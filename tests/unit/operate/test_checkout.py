"""A checkout is named for its commit, and what no commit has is named."""

import subprocess
from pathlib import Path

import pytest

from operate.checkout import UNKNOWN, Checkout, read_checkout, read_commit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout of one commit with the file ``kept``, which ignores ``ignored``."""
    (tmp_path / "kept").write_text("1")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "one")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def test_a_clean_checkout_is_its_commit(root: Path) -> None:
    (root / "ignored").write_text("2")
    commit = git(root, "rev-parse", "HEAD")
    assert read_checkout(root) == Checkout(commit)
    assert read_checkout(root).release == read_commit(root) == commit


def test_files_that_no_commit_has_so_are_named(root: Path) -> None:
    (root / "kept").write_text("2")
    (root / "new").mkdir()
    (root / "new" / "file").write_text("3")
    found = read_checkout(root)
    assert set(found.changed) == {"kept", "new/file"}
    assert found.release == f"{read_commit(root)}-dirty"


def test_a_folder_without_git_has_no_commit(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (inner := root / "sources").mkdir()  # an archive that was unpacked in another checkout
    for folder in (tmp_path_factory.mktemp("plain"), inner):
        assert read_checkout(folder) == Checkout(UNKNOWN)
        assert read_checkout(folder).release == UNKNOWN


def test_a_machine_without_git_has_no_commit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert read_commit(root) == UNKNOWN
