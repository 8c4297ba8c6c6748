"""A target of the Makefile gets exactly the arguments that it is given."""

from pathlib import Path

import pytest

from operate import make

MAKEFILE = "cdk:\n\t@for one in $(ARGS); do printf '%s\\n' \"$$one\" >> given; done\nfail:\n\t@exit 3\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    return tmp_path


def test_arguments_arrive_as_they_are(root: Path) -> None:
    arguments = ["deploy", "Spass-*", "a b", "it's", "$HOME", "--app", "/tmp/with space"]
    assert make.run("cdk", arguments) == 0
    assert (root / "given").read_text().splitlines() == arguments


def test_an_outer_make_does_not_give_its_arguments(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--yes")
    assert make.run("cdk", ["synth"]) == 0
    assert (root / "given").read_text().splitlines() == ["synth"]


def test_a_failure_is_an_exit_status(root: Path) -> None:
    assert make.run("fail", []) != 0
