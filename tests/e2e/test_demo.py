"""`make demo` shows the whole main job, and would say so if it did not hold."""

import os
import subprocess
import sys

from local.home import ROOT
from tests.e2e.conftest import Gateway


def test_the_demo_walks_through_the_main_job(gateway: Gateway) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "local.demo", "--port", str(gateway.port)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for fact in ("gebaut 1791", "Dein Lieblingssport ist Tennis", "368 Metern", "= 30447", "24 hours", "Every answer follows"):
        assert fact in ended.stdout
