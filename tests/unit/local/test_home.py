"""The folder of local state: only one gateway can use it, and damaged files do not prevent a start."""

import os
from pathlib import Path

import pytest

from local.home import Home, LocalError, home_from_environment


def test_two_gateways_cannot_share_a_home(tmp_path: Path) -> None:
    with Home(tmp_path).lock(), pytest.raises(LocalError, match="SPASS_HOME"), Home(tmp_path).lock():
        pass


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
