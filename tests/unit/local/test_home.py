"""The folder of local state: only one gateway can use it, and damaged files do not prevent a start."""

import os
from pathlib import Path

import pytest

from local.home import Home, LocalError, home_from_environment
from local.signatures import AccessKey


def test_two_gateways_cannot_share_a_home(tmp_path: Path) -> None:
    with Home(tmp_path).lock(), pytest.raises(LocalError, match="SPASS_HOME"), Home(tmp_path).lock():
        pass


def test_the_default_folder_of_an_earlier_release_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o775)  # the umask of many systems lets the group write
    monkeypatch.setattr("local.home._DEFAULT", tmp_path)
    with Home(tmp_path).lock():
        assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_existed_keeps_its_mode_and_the_state_in_it_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "aws").mkdir(0o755)
    home = Home(tmp_path)
    with home.lock():
        assert home.check_last_run() == []
    assert tmp_path.stat().st_mode & 0o7777 == 0o755
    assert {folder.name: folder.stat().st_mode & 0o777 for folder in tmp_path.iterdir() if folder.is_dir()} == {
        "aws": 0o700,
        "logs": 0o700,
        "s3": 0o700,
    }


def test_a_folder_that_a_start_makes_is_private(tmp_path: Path) -> None:
    with Home(tmp_path / "made").lock():
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_private_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    with Home(tmp_path).lock():
        monkeypatch.setattr(Path, "chmod", refuse)
        notes = Home(tmp_path).check_last_run()
    assert [note.partition(" ")[0] for note in notes] == [str(tmp_path / name) for name in ("logs", "aws", "s3")]


def test_the_lock_is_released_when_its_context_ends(tmp_path: Path) -> None:
    for _ in range(2):
        with Home(tmp_path).lock():
            assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_damaged_file_is_moved_and_reported(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.emulator_state.mkdir()
    (home.emulator_state / "dynamodb.json").write_text('{"half')
    (home.emulator_state / "s3.json").write_text("{}")
    notes = home.check_last_run()
    assert any("dynamodb.json" in note for note in notes)
    assert [file.name for file in home.emulator_state.iterdir()] == ["s3.json"]
    assert len(list(tmp_path.glob("damaged-*/dynamodb.json"))) == 1


def test_a_killed_run_is_reported_at_the_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.emulator_state.mkdir()
    state = home.emulator_state / "dynamodb.json"
    state.write_text("{}")
    home.mark_started()
    os.utime(state, (0, 0))  # older than the start, so the emulator did not save it after that
    assert any("killed" in note for note in home.check_last_run())
    after_start = (tmp_path / "started").stat().st_mtime + 5
    os.utime(state, (after_start, after_start))
    assert home.check_last_run() == []


def test_nothing_is_reported_if_no_start_was_recorded(tmp_path: Path) -> None:
    for _ in range(2):
        assert Home(tmp_path).check_last_run() == []


def test_spass_home_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPASS_HOME", str(tmp_path / "elsewhere"))
    assert home_from_environment().path == tmp_path / "elsewhere"
    monkeypatch.delenv("SPASS_HOME")
    assert home_from_environment().path.name == ".local"


KEY = AccessKey("SPASSTEST", "secret")


def test_the_key_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, target, unlink = Home(tmp_path / "home"), tmp_path / "target", Path.unlink
    home.path.mkdir()

    def unlink_and_link(path: Path, *, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        path.symlink_to(target)

    monkeypatch.setattr(Path, "unlink", unlink_and_link)
    with pytest.raises(LocalError, match="SPASS_HOME"):
        home.write_aws_config("http://127.0.0.1:4566", "eu-central-1", KEY)
    assert not target.exists()


def test_the_key_replaces_an_older_file_and_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    home = Home(tmp_path)
    home.aws_config.symlink_to(target)
    for endpoint in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        home.write_aws_config(endpoint, "eu-central-1", KEY)
        assert endpoint in home.aws_config.read_text()
        assert home.aws_config.lstat().st_mode & 0o777 == 0o600
    assert target.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(LocalError, match="chmod go-w"), Home(tmp_path).lock():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(LocalError, match="SPASS_HOME"), Home(tmp_path).lock():
        pass
    assert list(tmp_path.iterdir()) == []
