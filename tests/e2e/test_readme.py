"""The walk and the examples of the README, run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("number", [0, 1], ids=["openai", "langchain"])
def test_the_examples_in_python_run_as_they_stand(gateway: Gateway, tmp_path: Path, number: int) -> None:
    examples = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(examples) == 2
    code = examples[number].replace("http://127.0.0.1:3000", gateway.url)
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\[-?\d\.\d+, ", ended.stdout), ended.stdout
