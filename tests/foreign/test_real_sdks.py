"""The real SDKs of both foreign agents work through POST /v1/ask. Their models are scripted servers on loopback."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spass.testing.http_server import json_answer, serve
from tests.foreign.conftest import ANTHROPIC_KEY, LLM_KEY, Machine
from tests.foreign.scripted_models import Call, Turn, anthropic_model, in_order, openai_model


def wait_for_no_process(folder: Path, seconds: float = 2) -> None:
    """Wait until no process works in ``folder``.

    Raises:
        AssertionError: some still does.
    """
    give_up = time.monotonic() + seconds
    while working := processes_in(folder):
        assert time.monotonic() < give_up, working
        time.sleep(0.05)


def processes_in(folder: Path) -> list[str]:
    """Return the commands of the processes that work in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


# --- OpenHands ---


def test_openhands_edits_a_file_and_answers_its_last_message(machine: Machine) -> None:
    (machine.workspace / "app.py").write_text("print('hello')\n")
    path = str(machine.workspace / "app.py")
    edit = Call("file_editor", {"command": "str_replace", "path": path, "old_str": "hello", "new_str": "goodbye"})
    run = Call("terminal", {"command": "python3 app.py > out.txt; env > environment.txt"})
    with openai_model(in_order(edit, run, "I changed app.py and ran it.")) as upstream:
        machine.use(llm=upstream.url)
        reply = machine.ask("openhands", "Say goodbye instead.")
    assert reply.status == 200, reply.text
    answer = reply.json
    assert (machine.workspace / "app.py").read_text() == "print('goodbye')\n"
    assert (machine.workspace / "out.txt").read_text() == "goodbye\n"
    assert (answer["content"], answer["turns"]) == ("I changed app.py and ran it.", 1)
    assert [(tool["tool_name"], tool["success"]) for tool in answer["tool_results"]] == [
        ("file_editor", True),
        ("terminal", True),
    ]
    assert (answer["metadata"]["status"], answer["usage"]["prompt_tokens"]) == ("finished", 300)
    assert upstream.keys == {LLM_KEY}
    assert set(upstream.tools()) == {"terminal", "file_editor", "finish", "think"}
    assert {request["model"] for request in upstream.requests} == {"small"}
    assert upstream.requests[0]["max_completion_tokens"] == 1024
    assert LLM_KEY not in (machine.workspace / "environment.txt").read_text()
    wait_for_no_process(machine.workspace)


def test_openhands_answers_the_message_of_its_finish_tool(machine: Machine) -> None:
    with openai_model(in_order(Call("finish", {"message": "Nothing to do."}))) as upstream:
        machine.use(llm=upstream.url)
        reply = machine.ask("openhands", "Look around.")
    assert reply.json["content"] == "Nothing to do."
    assert reply.json["tool_results"] == []


def test_openhands_ends_at_its_timeout_with_everything_it_started(machine: Machine) -> None:
    started = machine.workspace / "started"
    command = "(setsid sleep 300 &) ; sleep 300 & touch started; sleep 300"
    work = Call("terminal", {"command": command, "timeout": 300})  # without one, the SDK returns after 30 silent seconds
    with openai_model(in_order(work)) as upstream:
        machine.use(llm=upstream.url)
        assert machine.ask("openhands", "Wait.", timeout=1).code == "upstream_timeout"
        wait_for_no_process(machine.workspace)
        reply = machine.ask("openhands", "Wait.", timeout=45)
    assert (reply.status, reply.code) == (504, "upstream_timeout")
    assert started.exists(), "the agent had started something"
    wait_for_no_process(machine.workspace)


def test_a_refused_key_of_openhands_is_in_no_error(machine: Machine) -> None:
    refusal = json_answer({"error": {"message": f"Incorrect API key provided: {LLM_KEY}.", "code": "invalid_api_key"}}, 401)
    with serve(lambda _: refusal) as url:
        machine.use(llm=f"{url}/v1")
        reply = machine.ask("openhands", "Hi", timeout=60)
    assert (reply.status, reply.code) == (502, "upstream_error")
    assert "Incorrect API key provided" in reply.json["error"]["message"]
    assert LLM_KEY not in reply.text


# --- Claude Agent SDK ---


def test_two_first_uses_of_claude_code_install_it_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with anthropic_model(in_order("Hello.")) as upstream:
        machine.use(anthropic=upstream.url)
        requests = [machine.gateway.send_async("POST", "/v1/ask", body=machine.body("claude_code", "Hi")) for _ in range(2)]
        first, second = machine.gateway.send_together(requests)
    assert [first.json["content"], second.json["content"]] == ["Hello.", "Hello."]
    assert first.json["metadata"]["session_id"] != second.json["metadata"]["session_id"]
    assert capsys.readouterr().err.count("Installing the Claude Agent SDK") == 1


ONE, BOTH = "You said one thing.", "You said both."


def count_users(messages: Sequence[Any]) -> Turn:
    texts = json.dumps(messages)
    return BOTH if "four-letter word" in texts and "What was it?" in texts else ONE


def test_claude_code_continues_a_session_by_its_id(machine: Machine) -> None:
    with anthropic_model(count_users) as upstream:
        machine.use(anthropic=upstream.url)
        first = machine.ask("claude_code", "Remember a four-letter word.").json
        session = first["metadata"]["session_id"]
        second = machine.ask("claude_code", "What was it?", session_id=session).json
        other = machine.ask("claude_code", "What was it?").json
    assert (first["content"], second["content"], other["content"]) == (
        "You said one thing.",
        "You said both.",
        "You said one thing.",
    )
    assert second["metadata"]["session_id"] == session != other["metadata"]["session_id"]
    assert upstream.keys == {ANTHROPIC_KEY}
    assert first["metadata"]["cost_usd"] == pytest.approx(second["metadata"]["cost_usd"])


def test_claude_code_runs_its_tools_in_the_workspace(machine: Machine) -> None:
    command = Call("Bash", {"command": "pwd > where.txt; ls", "description": "List"})
    with anthropic_model(in_order(command, "Listed.")) as upstream:
        machine.use(anthropic=upstream.url)
        answer = machine.ask("claude_code", "List the files.").json
    assert (machine.workspace / "where.txt").read_text().strip() == str(machine.workspace.resolve())
    assert (answer["content"], answer["turns"], answer["metadata"]["num_turns"]) == ("Listed.", 1, 2)
    (tool,) = answer["tool_results"]
    assert (tool["tool_name"], tool["success"], "where.txt" in tool["content"]) == ("Bash", True, True)
    assert answer["usage"] == {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    wait_for_no_process(machine.workspace)


@pytest.mark.parametrize("allowed", [["Read", "Grep"], []])
def test_allowed_tools_are_all_tools_of_claude_code(machine: Machine, allowed: list[str]) -> None:
    with anthropic_model(in_order("None.")) as upstream:
        machine.use(anthropic=upstream.url)
        assert machine.ask("claude_code", "Hi", allowed_tools=allowed).json["content"] == "None."
    assert set(upstream.tools()) - {"DeferredToolPlaceholder"} == set(allowed)


def test_claude_code_loads_nothing_from_the_workspace(machine: Machine) -> None:
    (machine.workspace / ".claude").mkdir()
    hook = {"type": "command", "command": f"touch {machine.workspace}/hooked"}
    settings = {"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}, "env": {"PLANTED": "axolotl"}, "model": "axolotl-model"}
    (machine.workspace / ".claude" / "settings.json").write_text(json.dumps(settings))
    (machine.workspace / "CLAUDE.md").write_text("axolotl instructions")
    server = {"command": "sh", "args": ["-c", f"touch {machine.workspace}/served"]}
    (machine.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"axolotl": server}}))
    with anthropic_model(in_order("Hello.")) as upstream:
        machine.use(anthropic=upstream.url)
        assert machine.ask("claude_code", "Hi").json["content"] == "Hello."
    assert "axolotl" not in json.dumps(upstream.requests)
    assert sorted(path.name for path in machine.workspace.iterdir()) == [".claude", ".mcp.json", "CLAUDE.md"]


def test_claude_code_ends_at_its_timeout_with_everything_it_started(machine: Machine) -> None:
    work = Call("Bash", {"command": "(setsid sleep 300 &); sleep 300 & touch started; sleep 300", "description": "Wait"})
    with anthropic_model(in_order(work)) as upstream:
        machine.use(anthropic=upstream.url)
        assert machine.ask("claude_code", "Wait.", timeout=1).code == "upstream_timeout"
        wait_for_no_process(machine.workspace)
        reply = machine.ask("claude_code", "Wait.", timeout=15)
    assert (reply.status, reply.code) == (504, "upstream_timeout")
    assert (machine.workspace / "started").exists(), "the agent had started something"
    wait_for_no_process(machine.workspace)


def test_a_session_that_does_not_exist_is_an_error(machine: Machine) -> None:
    with anthropic_model(in_order("Hello.")) as upstream:
        machine.use(anthropic=upstream.url)
        reply = machine.ask("claude_code", "Hi", session_id="11111111-2222-4333-8444-555555555555")
    assert (reply.status, reply.code) == (502, "upstream_error")
    assert "No conversation found" in reply.json["error"]["message"]
    assert upstream.requests == []
