"""The command of the rehearsal says why it ended, and leaves nothing but logs."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.rehearsal import __main__ as command
from infra.rehearsal.processes import RehearsalFailed, run
from infra.rehearsal.rehearsal import Rehearsal
from infra.rehearsal.steps import Step


@pytest.fixture(autouse=True)
def _without_an_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # set again at the end
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(command, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "_FAILURES", tmp_path / "cache" / "failed")
    monkeypatch.setattr(
        command, "running_emulator", lambda *_: nullcontext(SimpleNamespace(server=SimpleNamespace(failure=lambda: None)))
    )
    monkeypatch.setattr(command, "running_model", lambda *_: nullcontext())


def test_an_interrupted_rehearsal_leaves_no_file_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made: list[Path] = []

    def synthesise(rehearsal: Rehearsal) -> str:
        program = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
        made.append(Path(run(program, log=rehearsal.log, environment=dict(os.environ)).strip()))
        assert made[0].is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "STEPS", [Step("synthesis", synthesise)])
    assert command.main([]) == 130
    assert capsys.readouterr().out.splitlines()[-1] == "Interrupted."
    assert not made[0].exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_failure_is_told_when_the_logs_of_an_earlier_one_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(rehearsal: Rehearsal) -> str:
        rehearsal.log.write_text("why", encoding="utf-8")
        raise RehearsalFailed("it is broken", rehearsal.log)

    logs = tmp_path / "cache" / "failed"
    logs.mkdir(parents=True)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    monkeypatch.setattr(command, "STEPS", [Step("synthesis", fail)])
    assert command.main([]) == 1
    assert "The step 'synthesis' failed: it is broken" in capsys.readouterr().out
    assert (logs / "rehearsal.log").read_text(encoding="utf-8") == "why"
