"""The walk of the README, pasted into a shell as it stands there."""

import subprocess
from pathlib import Path

from local.home import ROOT
from tests.e2e.conftest import Gateway

FACTS = (
    '"results":[{"id":"d2"',  # the largest park
    "wurde 1791 fertig",
    "Lieblingssport ist Tennis",
    "= 30447",
    '"status":"succeeded"',
    '"results":[{"id":"potsdam.md#1"',
    '"metadata":{"kind":"park"}',
    '"confirm_required":true',
    "data: [DONE]",
    '"key":"researcher"',
    '"tool":"rag_query"',
    '"content":"The garden door opens with 4711',
    '"memory":"db"',
)


def test_the_walk_with_curl_works_as_it_is_pasted(gateway: Gateway, tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## A walk with curl", 1)[1]
    walk = section.split("```bash\n", 1)[1].split("```", 1)[0]
    assert "http://127.0.0.1:3000" in walk
    script = "shopt -s expand_aliases\n" + walk.replace("http://127.0.0.1:3000", gateway.url)
    ended = subprocess.run(["bash", "-e"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert '"error"' not in ended.stdout
    for fact in FACTS:
        assert fact in ended.stdout, ended.stdout
