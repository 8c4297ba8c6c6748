"""``SPASS_SANDBOX=none``: what needs code is refused before any model call, and everything else works"""

import pytest

from spass.agents.kinds.registry import KINDS
from spass.sandbox.launchers import select_sandbox
from tests.functions.gateway import Gateway
from tests.unit.tools.internet import Internet

CODE_KINDS = sorted(key for key in KINDS.keys() if KINDS.get(key).needs == "code")  # noqa: SIM118 (not a mapping)
OTHER_KINDS = sorted(key for key in KINDS.keys() if KINDS.get(key).needs is None)  # noqa: SIM118


@pytest.fixture
def codeless(gateway: Gateway) -> Gateway:
    gateway.services.sandbox = select_sandbox({"SPASS_SANDBOX": "none"})
    gateway.model.script = "The answer."
    return gateway


@pytest.mark.parametrize("kind", CODE_KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_kind_that_runs_code_is_refused_by_status_before_any_call_or_fetch(codeless: Gateway, kind: str, stream: bool) -> None:
    internet = Internet()
    codeless.services.fetcher = internet.fetcher
    (codeless.services.settings.agents / "coder.yaml").write_text(f"name: coder\nkind: {kind}\nmodel: small\n")
    session = codeless.send("POST", "/a1/agents/coder/sessions").json["id"]
    text = "Read https://public.example/"
    messages = [{"role": "user", "content": text}]
    bodies = {
        "/v1/ask": {"agent": kind, "input": text, "context": "1\n2", "stream": stream},
        "/a1/agents/coder/chat": {"message": text, "stream": stream},
        f"/a1/agents/coder/sessions/{session}/messages": {"message": text, "stream": stream},
        "/v1/chat/completions": {"model": "agent/coder", "messages": messages, "stream": stream},
        "/c1/agents/coder/chat": {"message_id": "m1", "messages": messages},
    }
    for path, body in bodies.items():
        reply = codeless.send("POST", path, body=body)
        assert (reply.status, reply.code) == (503, "sandbox_unavailable"), path
        assert "SPASS_SANDBOX is none" in reply.json["error"]["message"]
    assert (codeless.model.requests, internet.resolved) == ([], [])
    assert [one["id"] for one in codeless.send("GET", "/a1/agents/coder/sessions").json["sessions"]] == [session]


def test_the_list_of_kinds_says_which_cannot_run_and_why(codeless: Gateway) -> None:
    kinds = {kind["key"]: kind for kind in codeless.send("GET", "/v1/kinds").json["kinds"]}
    for key in CODE_KINDS:
        assert kinds[key]["available"] is False
        assert kinds[key]["reason"] == "SPASS_SANDBOX is none. Set it to auto to run code."
    assert all(kinds[key]["available"] is True for key in OTHER_KINDS)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_answer(codeless: Gateway, kind: str) -> None:
    body = {"agent": kind, "input": "Hello.", "tools": [] if kind == "simple" else ["calculator"]}
    reply = codeless.send("POST", "/v1/ask", body=body)
    assert (reply.status, reply.json["content"]) == (200, "The answer.")


def test_the_tool_is_still_listed(codeless: Gateway) -> None:
    tools = codeless.send("GET", "/v1/tools").json["tools"]
    assert "code_interpreter" in [tool["function"]["name"] for tool in tools]
