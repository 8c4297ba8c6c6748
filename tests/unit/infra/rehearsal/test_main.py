"""What the command of the rehearsal prints and leaves."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.rehearsal import __main__ as command
from infra.rehearsal.processes import run
from infra.rehearsal.rehearsal import Rehearsal
from infra.rehearsal.steps import Step


def test_an_interrupted_rehearsal_leaves_no_file_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made: list[Path] = []

    def synthesise(rehearsal: Rehearsal) -> str:
        program = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
        made.append(Path(run(program, log=rehearsal.log, environment=dict(os.environ)).strip()))
        assert made[0].is_dir()
        raise KeyboardInterrupt

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # set again at the end
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(command, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "_FAILURES", tmp_path / "cache" / "failed")
    monkeypatch.setattr(command, "running_emulator", lambda *_: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(command, "running_model", lambda *_: nullcontext())
    monkeypatch.setattr(command, "STEPS", [Step("synthesis", synthesise)])
    assert command.main([]) == 130
    assert capsys.readouterr().out.splitlines()[-1] == "Interrupted."
    assert not made[0].exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]
