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
    '"compacted_message_count":4',
    '"parent_session_id":"ses_',
    '"last_seq":4',
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


OF_SESSIONS = ('"status":"succeeded"', "80 Euro", '"parent_session_id":"ses_', '"last_seq":2')


def pasted(block: str, gateway: Gateway, folder: Path) -> str:
    """What a shell says to a block of commands, meant for the default port."""
    assert "http://127.0.0.1:3000" in block
    script = block.replace("http://127.0.0.1:3000", gateway.url)
    ended = subprocess.run(["bash", "-e"], input=script, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert '"error":{' not in ended.stdout
    return ended.stdout


def first_block(page: str, heading: str, language: str = "bash") -> str:
    section = (ROOT / page).read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    return section.split(f"```{language}\n", 1)[1].split("```", 1)[0]


def example(code: str, gateway: Gateway, folder: Path) -> str:
    """What a program prints that is meant for the default port."""
    code = code.replace("http://127.0.0.1:3000", gateway.url)
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_walk_with_curl_works_as_it_is_pasted(gateway: Gateway, tmp_path: Path) -> None:
    said = pasted(first_block("README.md", "A walk with curl"), gateway, tmp_path)
    for fact in FACTS:
        assert fact in said, said


def test_the_commands_about_compaction_work_as_they_are_pasted(gateway: Gateway, tmp_path: Path) -> None:
    said = pasted(first_block("docs/sessions.md", "Asking for a compaction"), gateway, tmp_path)
    for fact in OF_SESSIONS:
        assert fact in said, said


def test_the_commands_that_erase_a_conversation_leave_nothing_of_it(gateway: Gateway, tmp_path: Path) -> None:
    compacted, erased = (first_block("docs/sessions.md", heading) for heading in ("Asking for a compaction", "Deletion"))
    left = 'a1 $SESSIONS | python3 -c \'import json, sys; print("left:", len(json.load(sys.stdin)["sessions"]))\'\n'
    said = pasted((compacted + erased + left).replace("SPASS-User-Id: ada", "SPASS-User-Id: eraser"), gateway, tmp_path)
    assert said.count('{"deleted":true}') == 2, said
    assert "left: 0" in said, said


def test_the_openai_package_talks_to_an_agent_as_the_page_about_sessions_says(gateway: Gateway, tmp_path: Path) -> None:
    code = first_block("docs/sessions.md", "Writing to a session that was compacted", "python")
    assert '"http://127.0.0.1:3000/v1"' in code
    said = example(code, gateway, tmp_path)
    assert "'seq': 2" in said, said


@pytest.mark.parametrize("number", [0, 1], ids=["openai", "langchain"])
def test_the_examples_in_python_run_as_they_stand(gateway: Gateway, tmp_path: Path, number: int) -> None:
    examples = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(examples) == 2
    said = example(examples[number], gateway, tmp_path)
    assert re.search(r"\[-?\d\.\d+, ", said), said
