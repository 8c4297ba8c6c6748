"""The command line and the client against a started gateway, whose model is the stand-in."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spass import Spass
from spass.sdk import SpassApiError
from tests.e2e.conftest import Gateway
from tests.e2e.test_documentation import first_block
from tests.unit.cli.command import environment, spass, spass_in_terminal

QUESTION = "What is 1791 * 17?"
PRODUCT = "30447"
KINDS = ["orchestrator", "react", "native_react"]

VOLATILE = ("request_id", "duration_ms", "created_at", "id")


@pytest.fixture
def client(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spass]:
    for name in ("SPASS_TOKEN", "SPASS_USER"):
        monkeypatch.delenv(name, raising=False)
    with Spass(gateway.url) as spass:
        yield spass


def without_ids_and_times(value: Any) -> Any:
    """Return ``value`` without what differs between two equal answers."""
    if isinstance(value, dict):
        return {name: without_ids_and_times(inner) for name, inner in value.items() if name not in VOLATILE}
    return [without_ids_and_times(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("agent", KINDS)
@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["stream", "no stream"])
def test_ask_computes_with_a_tool(gateway: Gateway, agent: str, options: list[str]) -> None:
    code, out, err = spass(gateway.url, "ask", "--agent", agent, "--tools", "calculator", *options, QUESTION)
    assert code == 0, err
    assert PRODUCT in out
    assert "[calculator]" in err


def test_a_question_from_stdin_and_json_is_the_answer_of_the_route(gateway: Gateway, client: Spass) -> None:
    code, out, err = spass(gateway.url, "ask", "--tools", "calculator", "--json", "-", stdin=f"{QUESTION}\n")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert without_ids_and_times(printed) == without_ids_and_times(client.ask_full(QUESTION, tools=["calculator"]))
    assert PRODUCT in printed["content"]
    assert [result["tool_name"] for result in printed["tool_results"]] == ["calculator"]


@pytest.mark.parametrize("agent", ["simple", *KINDS])
def test_ask_ask_full_and_stream_give_the_same_answer(client: Spass, agent: str) -> None:
    text = client.ask(QUESTION, agent=agent, tools=["calculator"])
    full = client.ask_full(QUESTION, agent=agent, tools=["calculator"])
    events = list(client.stream(QUESTION, agent=agent, tools=["calculator"]))
    done = events[-1]
    tokens = [event for event in events if event["type"] == "token"]
    assert text == full["content"] == "".join(event["content"] for event in tokens if event["step"] == tokens[-1]["step"])
    calls = [event for event in events if event["type"] == "tool_call"]
    assert [call["tool"] for call in calls] == [result["tool_name"] for result in full["tool_results"]]
    assert (done["turns"], done["finish_reason"], done["kind"]) == (full["turns"], full["finish_reason"], full["kind"])


def test_what_is_listed_can_be_asked(gateway: Gateway, client: Spass) -> None:
    assert "orchestrator" in [kind.key for kind in client.kinds()]
    assert "calculator" in [tool.function.name for tool in client.tools()]
    for command in ("kinds", "agents", "tools"):
        code, out, _ = spass(gateway.url, command)
        assert code == 0
        assert out
    agents = [agent.name for agent in client.agents()]
    assert "concise-de" in agents
    assert client.ask("Hallo!", agent="concise-de")


def test_a_chat_remembers_and_continues_after_a_compaction(gateway: Gateway) -> None:
    sessions = "/a1/agents/concise-de/sessions"
    with gateway.client(user="demo") as http:
        session = http.post(sessions, json={"compact_keep_last_n": 2}).json()["id"]
        chat = (gateway.url, "chat", "--agent", "concise-de")
        lines = [f"/session {session}", "Mein Lieblingssport ist Tennis.", "Welcher Sport ist mein Liebling?"]
        code, out, err = spass(*chat, stdin="\n".join(lines))
        assert code == 0, err
        assert "Tennis" in out.splitlines()[-1]
        compacted = http.post(f"{sessions}/{session}/compact").json()
    # The session is archived now: the gateway redirects to its successor.
    code, out, err = spass(*chat, stdin=f"/session {session}\nWelcher Sport ist mein Liebling?\n/session\n")
    assert code == 0, err
    assert "Tennis" in out
    assert err.splitlines()[-1] == f"session: {compacted['successor_session_id']}"


def test_a_job_card_is_answered_in_a_session_of_its_own(gateway: Gateway, client: Spass) -> None:
    arguments = ("job", "--agent", "dir-code", "--title", "Look around", "--acceptance", "Nothing changes.")
    code, out, err = spass(gateway.url, *arguments, "Say what you can do.")
    assert code == 0, err
    assert out.strip()
    with pytest.raises(SpassApiError) as refused:
        list(client.job_card("dir-code", "x" * 201, "Too long a title."))
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


def test_an_error_answer_has_the_code_of_the_wire(gateway: Gateway, client: Spass) -> None:
    code, out, err = spass(gateway.url, "ask", "--agent", "nonsense", "Hello")
    assert (code, out) == (1, "")
    assert "agent_not_found" in err
    assert "req_" in err
    with pytest.raises(SpassApiError) as raised:
        client.ask("Hello", params={"nonsense": 1})
    assert (raised.value.status, raised.value.code) == (400, "invalid_request")
    with pytest.raises(SpassApiError) as refused:
        list(client.stream("Hello", agent="nonsense"))
    assert (refused.value.status, refused.value.code) == (404, "agent_not_found")


def test_a_terminal_shows_the_answer(gateway: Gateway) -> None:
    output = spass_in_terminal(gateway.url, "ask", "--tools", "calculator", QUESTION)
    assert output.code == 0
    assert PRODUCT in output.out.splitlines()[-1]


def test_the_example_of_the_documentation_runs(gateway: Gateway, tmp_path: Path) -> None:
    code = first_block("docs/cli.md", "Python", "python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(gateway.url), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert PRODUCT in done.stdout.splitlines()[-1]
