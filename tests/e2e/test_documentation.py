"""Run the commands and examples of the README and of the pages in ``docs``. Only their address is replaced."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from local.home import ROOT
from tests.e2e.conftest import Gateway, running_gateway

FACTS = (
    '"results":[{"id":"d2"',  # the largest park
    "completed in 1791.",
    "favourite sport is tennis",
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
    output = shell(block.replace("http://127.0.0.1:3000", gateway.url), folder)
    assert '"error":{' not in output
    return output


def shell(script: str, folder: Path) -> str:
    result = subprocess.run(["bash", "-e"], input=script, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
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


def pasted(page: str) -> str:
    """Return all shell commands of ``page``, as a reader pastes them one after the other, but for those that need a checkout."""
    blocks = re.findall(r"(?s)```bash\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"))
    return "".join(block for block in blocks if not re.match(r"make |\.venv/", block))


def test_the_commands_of_the_walk_work(gateway: Gateway, tmp_path: Path) -> None:
    output = run_commands(pasted("docs/walk.md"), gateway, tmp_path)
    for fact in FACTS:
        assert fact in output, output


def test_the_command_of_the_readme_answers(gateway: Gateway, tmp_path: Path) -> None:
    output = run_commands(first_block("README.md", "Ask with curl"), gateway, tmp_path)
    assert "favourite sport is tennis" in output


@pytest.mark.parametrize(
    ("page", "facts"),
    [
        (
            "docs/knowledge.md",
            ('"results":[{"id":"returns"', "returned within 30 days", '"metadata":{"country":"AT"}', '{"deleted":true'),
        ),
        (
            "docs/spending.md",
            ('"total":{"requests":', '"tool":"calculator"', '"monthly_budget_usd":"db"', '"monthly_budget_usd":"process"'),
        ),
    ],
)
def test_the_commands_of_a_task_work(gateway: Gateway, tmp_path: Path, page: str, facts: tuple[str, ...]) -> None:
    output = run_commands(pasted(page), gateway, tmp_path)
    for fact in facts:
        assert fact in output, output


def test_the_requests_of_the_first_deployment_are_answered_as_its_page_says(gateway: Gateway, tmp_path: Path) -> None:
    text = (ROOT / "docs/first-deployment.md").read_text(encoding="utf-8")
    requests = [block for block in re.findall(r"(?s)```bash\n(.*?)```", text) if "curl" in block]
    health, stream, calculation, network, large = requests
    export = f"export SPASS={gateway.url} TOKEN=demo-token\n"
    assert '{"status":"ok"' in shell(export + health, tmp_path)
    streamed = shell(export + stream, tmp_path).lower()
    for expected in ("content-type: text/event-stream", "data: {", "data: [done]"):
        assert expected in streamed
    assert '"output":"5050\\n","error":null' in shell(export + calculation, tmp_path)
    assert '"output":"","error":"' in shell(export + network, tmp_path)
    refused = shell(export + large, tmp_path)
    assert re.findall(r"(?m)^(?:\{.*\})?(\d{3})$", refused) == ["413", "413"], refused
    assert refused.count('"payload_too_large"') == 2


def test_the_tutorial_and_the_page_about_access_work_as_they_are_written(tmp_path: Path) -> None:
    """The files of the pages are written as they are, with the sums of two tokens, and the commands are pasted."""
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    agent, tenants = re.findall(r"(?s)```yaml\n(.*?)```", text)
    (before, _, _) = (ROOT / "gateway.yaml").read_text(encoding="utf-8").partition("\ntenants:")
    for digit, token in (("1", "app-token"), ("2", "admin-token")):
        tenants = tenants.replace(digit * 64, hashlib.sha256(token.encode()).hexdigest())
    with running_gateway(tmp_path, f"{before}\n{tenants}", {"handbook": agent}) as gateway:
        make_tokens, tutorial = re.search(r"export TOKEN=.* ADMIN=.*\n", text), pasted("docs/tutorial.md")
        assert make_tokens is not None
        assert re.search(r"(?m)^[0-9a-f]{64} ", shell(make_tokens[0] + 'printf %s "$TOKEN" | shasum -a 256', tmp_path))
        known = tutorial.replace(make_tokens[0], "export TOKEN=app-token ADMIN=admin-token\n")
        output = run_commands(known, gateway, tmp_path)
        for fact in (
            '"id":"agent/handbook"',
            "Everybody has 30 days of holiday a year.",
            '"finish_reason":"stop"',
            "A laptop is replaced after four years.",
            '"key":"ada"',
            '"key":"handbook"',
            '"ceilings":{"monthly_budget_usd":50}',
        ):
            assert fact in output, output
        access = run_commands(pasted("docs/access.md"), gateway, tmp_path)
        for fact in ('"object":"list"', '"usable":true', '"monthly_budget_usd":80', '"monthly_budget_usd":null'):
            assert fact in access, access


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


def test_the_command_of_the_walk_prints_the_answer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"(?m)^\.venv/bin/python (-m spass .*)$", (ROOT / "docs/walk.md").read_text(encoding="utf-8"))
    monkeypatch.setenv("SPASS_URL", gateway.url)
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "sqrt(256) = 16\n"


def test_the_command_that_tries_a_deployment_leaves_nothing(gateway: Gateway) -> None:
    command = first_block("docs/deploying.md", "Try it")
    script = command.replace(".venv/bin/python", shlex.quote(sys.executable))
    environment = {**os.environ, "TOKEN": "other-token", "SPASS": gateway.url, "PYTHONPATH": str(ROOT / "shared")}
    done = subprocess.run(
        ["bash", "-ec", script], input="y\n", env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("What the test made is removed.\nAll steps passed.\n"), done.stdout
    with gateway.client("other-token", "operate-smoke") as client:
        agents = [agent["name"] for agent in client.get("/a1/agents").json()["agents"]]
        for path in ("/a1/rag/indices", "/v1/managed-agents", *(f"/a1/agents/{agent}/sessions" for agent in agents)):
            (items, _) = client.get(path).raise_for_status().json().values()
            assert items == [], path


def test_the_openai_example_of_the_readme_works(gateway: Gateway, tmp_path: Path) -> None:
    output = run_python(first_block("README.md", "Ask with an OpenAI SDK", "python"), gateway, tmp_path)
    assert output == "1791 * 17 = 30447\n"


def test_the_first_example_for_langchain_works(gateway: Gateway, tmp_path: Path) -> None:
    (example, *_) = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs/langchain.md").read_text(encoding="utf-8"))
    output = run_python(example, gateway, tmp_path)
    assert re.search(r"\[-?\d\.\d+, ", output), output


def test_the_agent_of_the_readme_answers_in_the_format_of_openai(tmp_path: Path) -> None:
    agent = first_block("README.md", "Write an agent", "yaml")
    config = (ROOT / "gateway.yaml").read_text(encoding="utf-8")
    with running_gateway(tmp_path, config, {"guide": agent}) as gateway, gateway.client() as client:
        messages = [{"role": "user", "content": "What is 1791 * 17?"}]
        answer = client.post("/v1/chat/completions", json={"model": "agent/guide", "messages": messages})
        assert "30447" in answer.raise_for_status().json()["choices"][0]["message"]["content"]
