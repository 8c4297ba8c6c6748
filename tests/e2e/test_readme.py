"""Run the commands and examples of the README, ``docs/sessions.md`` and ``docs/streaming.md``. Only their address is replaced."""

import re
import shlex
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
    '"content":"sqrt(256) = 16',
    '"kind":"native_react"',
    'data: {"type":"done"',
    "id: 1-1\ndata: ",
    '{"status":"cancelling"}',
    '"finish_reason":"cancelled"',
    '"content":"1 2 3 4 ',
    '"status":"succeeded"',
    '"results":[{"id":"potsdam.md#1"',
    '"metadata":{"kind":"park"}',
    '"confirm_required":true',
    "data: [DONE]",
    '"key":"researcher"',
    '"tool":"rag_query"',
    '"content":"The garden door opens with 4711',
    '"memory":"db"',
    '"path":"src/main.py","status":"changed","added":1,"removed":0',  # the director's edit
    '"status":"executed"',  # the approved deletion
    '"content":"2 lines mention Berlin."',  # what the model's code counted
    '"output":"5050\\n"',
    '"key":"pump","content":"The pump was repaired on Tuesday."',  # what the operator keeps
    '"state":{"input":"When was the pump repaired?"',
    "event: tool_calls\ndata: ",
    '"direction":"agent_to_user","content":"2+2 = 4"',
)


COMPACTION_FACTS = ('"status":"succeeded"', "80 Euro", '"parent_session_id":"ses_', '"last_seq":2')


def run_commands(block: str, gateway: Gateway, folder: Path) -> str:
    """Run shell commands, with the default address replaced by that of ``gateway``, and return their output."""
    assert "http://127.0.0.1:3000" in block
    script = block.replace("http://127.0.0.1:3000", gateway.url)
    result = subprocess.run(["bash", "-e"], input=script, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert '"error":{' not in result.stdout
    return result.stdout


def first_block(page: str, heading: str, language: str = "bash") -> str:
    section = (ROOT / page).read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    return section.split(f"```{language}\n", 1)[1].split("```", 1)[0]


def run_python(code: str, gateway: Gateway, folder: Path) -> str:
    """Run a Python program, with the default address replaced by that of ``gateway``, and return its output."""
    code = code.replace("http://127.0.0.1:3000", gateway.url)
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_curl_commands_of_the_readme_work(gateway: Gateway, tmp_path: Path) -> None:
    output = run_commands(first_block("README.md", "A walk with curl"), gateway, tmp_path)
    for fact in FACTS:
        assert fact in output, output


def test_the_commands_about_compaction_work(gateway: Gateway, tmp_path: Path) -> None:
    output = run_commands(first_block("docs/sessions.md", "Asking for a compaction"), gateway, tmp_path)
    for fact in COMPACTION_FACTS:
        assert fact in output, output


def test_the_commands_that_erase_a_conversation_leave_no_session(gateway: Gateway, tmp_path: Path) -> None:
    compacted, erased = (first_block("docs/sessions.md", heading) for heading in ("Asking for a compaction", "Deletion"))
    count = 'a1 $SESSIONS | python3 -c \'import json, sys; print("left:", len(json.load(sys.stdin)["sessions"]))\'\n'
    output = run_commands((compacted + erased + count).replace("SPASS-User-Id: ada", "SPASS-User-Id: eraser"), gateway, tmp_path)
    assert output.count('{"deleted":true}') == 2, output
    assert "left: 0" in output, output


def test_the_openai_example_of_the_page_about_sessions_works(gateway: Gateway, tmp_path: Path) -> None:
    code = first_block("docs/sessions.md", "Writing to a session that was compacted", "python")
    assert '"http://127.0.0.1:3000/v1"' in code
    output = run_python(code, gateway, tmp_path)
    assert "'seq': 2" in output, output


def test_the_command_of_the_readme_prints_the_answer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"(?m)^\.venv/bin/python (-m spass .*)$", (ROOT / "README.md").read_text(encoding="utf-8"))
    monkeypatch.setenv("SPASS_URL", gateway.url)
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "sqrt(256) = 16\n"


@pytest.mark.parametrize("number", [0, 1], ids=["openai", "langchain"])
def test_the_python_examples_of_the_readme_work(gateway: Gateway, tmp_path: Path, number: int) -> None:
    examples = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(examples) == 2
    output = run_python(examples[number], gateway, tmp_path)
    assert re.search(r"\[-?\d\.\d+, ", output), output
