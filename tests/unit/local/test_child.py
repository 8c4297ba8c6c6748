"""A child process ends with its module, with the same exit code, even if threads still run."""

import subprocess
import sys
from pathlib import Path

import pytest

from local.home import ROOT


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("sys.exit()", 0)])
def test_a_thread_that_waits_forever_does_not_delay_the_exit(tmp_path: Path, end: str, code: int) -> None:
    lines = ["import sys, threading", "threading.Thread(target=threading.Event().wait).start()", "print('output')", end]
    (tmp_path / "ends.py").write_text("\n".join(lines))
    with subprocess.Popen(
        [sys.executable, "-m", "local.child", "ends"],
        stdin=subprocess.PIPE,  # stays open, because the parent is alive
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    ) as child:
        assert child.wait(30) == code
        assert child.stdout is not None
        assert child.stdout.read() == b"output\n"
