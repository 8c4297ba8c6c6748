"""The folder of local state is one gateway's at a time, and no damage in it stops a start."""

import os
from pathlib import Path

import pytest

from local.home import Home, LocalError, home_from_environment


def test_two_gateways_cannot_share_a_home(tmp_path: Path) -> None:
    with Home(tmp_path).held(), pytest.raises(LocalError, match="SPASS_HOME"), Home(tmp_path).held():
        pass


def test_a_home_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with Home(tmp_path).held():
            assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_damaged_state_is_put_aside_and_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.emulator_state.mkdir()
    (home.emulator_state / "dynamodb.json").write_text('{"half')
    (home.emulator_state / "s3.json").write_text("{}")
    notes = home.left_behind()
    assert any("dynamodb.json" in note for note in notes)
    assert [file.name for file in home.emulator_state.iterdir()] == ["s3.json"]
    assert len(list(tmp_path.glob("damaged-*/dynamodb.json"))) == 1


def test_a_run_that_saved_nothing_is_said_at_the_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.emulator_state.mkdir()
    state = home.emulator_state / "dynamodb.json"
    state.write_text("{}")
    home.mark_started()
    os.utime(state, (0, 0))  # older than that start: it was never saved again
    assert any("killed" in note for note in home.left_behind())
    later = (tmp_path / "started").stat().st_mtime + 5
    os.utime(state, (later, later))
    assert home.left_behind() == []


def test_a_start_that_was_given_up_is_no_run(tmp_path: Path) -> None:
    for _ in range(2):
        assert Home(tmp_path).left_behind() == []


def test_spass_home_moves_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPASS_HOME", str(tmp_path / "elsewhere"))
    assert home_from_environment().path == tmp_path / "elsewhere"
    monkeypatch.delenv("SPASS_HOME")
    assert home_from_environment().path.name == ".local"
