"""`make` names the version of Node that the CDK needs."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [
        ("v18.20.4", 2, "need Node 22 on the PATH; 20 still works"),
        (None, 2, "need Node 22 on the PATH; 20 still works"),
        ("v20.20.2", 0, "Node 20 still works here, but the CDK has not supported it since October 2026: install Node 22."),
        ("v22.12.0", 0, ""),
        ("v24.1.0", 0, ""),
    ],
)
def test_make_recommends_node_22_and_still_runs_on_20(tmp_path: Path, version: str | None, code: int, message: str) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    node.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MAKEFLAGS": ""}
    process = subprocess.run(["make", "--silent", "node"], cwd=ROOT, env=environment, capture_output=True, check=False, text=True)
    assert process.returncode == code, process.stderr
    assert message in process.stderr
    assert bool(message) == bool(process.stderr)
