"""``GET /a1/agents`` says which agents the caller can use, and a message to any other is refused."""

from pathlib import Path
from typing import Any

import pytest

from spass.sandbox.launchers import no_sandbox
from tests.functions.gateway import Gateway

ADMIN = "demo-admin-token"
NOT_ALLOWED = "This token may not use the model '{}', which the agent needs."
REASONS = {
    ADMIN: {},
    "demo-token": {"costly": NOT_ALLOWED.format("dear")},
    "chat-only-token": {"costly": NOT_ALLOWED.format("dear"), "reading": NOT_ALLOWED.format("mini-embed")},
}
"""Why the agents cannot be used, by token."""


def listed(gateway: Gateway, token: str) -> dict[str, Any]:
    return {agent["name"]: agent for agent in gateway.send("GET", "/a1/agents", token=token).json["agents"]}


@pytest.mark.parametrize("token", REASONS)
def test_an_agent_is_usable_if_the_token_may_use_its_models(gateway: Gateway, token: str) -> None:
    documents = {"documents": [{"id": "a", "text": "alpha"}]}
    gateway.send("POST", "/a1/rag/indices/notes/documents", token=ADMIN, body=documents)
    agents = listed(gateway, token)
    assert {name: agent["unusable_reason"] for name, agent in agents.items() if not agent["usable"]} == REASONS[token]
    for name, agent in agents.items():
        one = gateway.send("GET", f"/a1/agents/{name}", token=token).json
        assert {key: one[key] for key in agent} == agent
        reply = gateway.send("POST", f"/a1/agents/{name}/chat", token=token, body={"message": "Hello?"})
        assert (reply.status == 200) is agent["usable"], name
        assert reply.code == (None if agent["usable"] else "model_not_allowed"), name


def test_an_agent_whose_model_no_backend_serves_is_not_usable(gateway: Gateway, tmp_path: Path) -> None:
    other = gateway.reconfigure(tmp_path / "other", "[small, dear, mini-embed]", "[small, mini-embed]")
    costly = listed(other, ADMIN)["costly"]
    assert costly["usable"] is False
    assert costly["unusable_reason"] == "No backend of this gateway serves the model 'dear', which the agent needs."


def test_an_agent_whose_kind_does_not_run_here_is_not_usable(gateway: Gateway) -> None:
    (gateway.services.settings.agents / "coder.yaml").write_text("name: coder\nkind: rlm\nmodel: small\ndescription: Codes.\n")
    assert listed(gateway, ADMIN)["coder"]["usable"] is True
    sandbox = gateway.services.sandbox = no_sandbox()
    coder = listed(gateway, ADMIN)["coder"]
    assert (coder["usable"], coder["unusable_reason"]) == (False, sandbox.unavailable)
    assert gateway.send("POST", "/a1/agents/coder/chat", body={"message": "Hello?"}).code == "sandbox_unavailable"
