"""Managed agents over HTTP: their values, their mailbox and their deletion."""

import re
from collections.abc import Mapping

import pytest

from spass.core.ids import id_pattern
from tests.functions.managed_agents import ManagedClient

VALUES: Mapping[str, object] = {
    "name": "Ada's reporter",
    "agent": "orchestrator",
    "model": "small",
    "tools": ["calculator", "think"],
    "system_prompt": "Be brief.",
    "params": {"max_turns": 3},
}


def test_a_new_agent_has_its_values_and_is_idle(client: ManagedClient) -> None:
    reply = client.send("POST", body=VALUES)
    assert reply.status == 201
    agent = reply.json
    assert re.fullmatch(id_pattern("agt"), agent["id"])
    assert {name: agent[name] for name in VALUES} == VALUES
    assert (agent["schedule"], agent["status"], agent["error"]) == (None, "idle", None)
    assert agent["created_at"] == agent["updated_at"]
    assert client.get(agent["id"]) == agent
    assert list(agent) == [
        *("id", "name", "agent", "model", "tools", "system_prompt", "params", "schedule", "status", "error"),
        *("created_at", "updated_at"),
    ]


def test_missing_values_are_null(client: ManagedClient) -> None:
    agent = client.get(client.create(agent="plain"))
    assert [agent[name] for name in ("model", "tools", "system_prompt", "params", "schedule")] == [None] * 5


def test_the_same_key_creates_one_agent(client: ManagedClient) -> None:
    key = {"Idempotency-Key": "create-1"}
    first, second = (client.send("POST", body=VALUES, headers=key) for _ in range(2))
    assert (second.status, second.json) == (201, first.json)
    assert second.headers["idempotency-replayed"] == "true"
    assert client.send("POST", body={**VALUES, "name": "other"}, headers=key).code == "idempotency_key_reused"
    assert len(client.send("GET").json["agents"]) == 1


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"name": "New"}, {"name": "New"}),
        ({"model": None, "tools": None, "system_prompt": None, "params": None}, {"model": None, "tools": None, "params": None}),
        ({"tools": []}, {"tools": []}),
        ({"params": {"max_turns": 1}}, {"params": {"max_turns": 1}}),
        ({"paused": True}, {"status": "paused"}),
        ({"paused": False}, {"status": "idle"}),
        ({"schedule": None}, {"schedule": None}),
        ({}, {}),
    ],
    ids=str,
)
def test_a_patch_changes_what_it_names_and_nothing_else(
    client: ManagedClient, change: Mapping[str, object], after: Mapping[str, object]
) -> None:
    before = client.get(client.create(**VALUES))
    reply = client.send("PATCH", f"/{before['id']}", change)
    assert reply.status == 200
    agent = reply.json
    assert client.get(before["id"]) == agent
    assert {name: agent[name] for name in after} == after
    unchanged = before.keys() - change.keys() - {"updated_at"} - ({"status"} if "paused" in change else set())
    assert {name: agent[name] for name in unchanged} == {name: before[name] for name in unchanged}


def test_a_deleted_agent_leaves_nothing_behind(client: ManagedClient) -> None:
    before = client.gateway.stored()
    agent = client.create(**VALUES)
    reply = client.send("DELETE", f"/{agent}")
    assert (reply.status, reply.json) == (200, {"deleted": True})
    assert client.gateway.stored() == before
    assert client.send("GET", f"/{agent}").code == "agent_not_found"
    assert client.send("DELETE", f"/{agent}").code == "agent_not_found"
    assert client.send("GET").json["agents"] == []


def test_an_agent_that_ran_leaves_nothing_but_its_usage(client: ManagedClient) -> None:
    """Its operator was told to forget in between, so the first of its two sessions is in the owner's list alone."""
    gateway = client.gateway
    agent = client.create(**{**VALUES, "agent": "operative"})
    for content in ("Remember: violet.", "long " * 3000):
        reply = client.send("POST", f"/{agent}/messages", {"content": content, "stream": True})
        assert reply.text.rstrip().endswith("data: [DONE]")
        forgotten = gateway.send("DELETE", f"/v1/operators/{agent}", token=client.token, headers=dict(client.headers))
        assert forgotten.json == {"deleted": True}
    client.send("POST", f"/{agent}/messages", {"content": "Good night.", "stream": True})
    client.send("POST", f"/{agent}/messages", {"content": "Pending."})
    assert client.send("DELETE", f"/{agent}").json == {"deleted": True}
    assert [key for key in gateway.stored() if "#USAGE#" not in key] == []


def test_a_message_waits_in_the_mailbox_without_a_model_call(client: ManagedClient) -> None:
    agent = client.create()
    replies = [client.send("POST", f"/{agent}/messages", {"content": f"Line {number}\nünd 🍵"}) for number in range(3)]
    assert [reply.status for reply in replies] == [202] * 3
    assert [reply.json for reply in replies] == client.messages(agent)
    for number, message in enumerate(client.messages(agent), 1):
        assert (message["seq"], message["content"]) == (number, f"Line {number - 1}\nünd 🍵")
        assert (message["direction"], message["status"], message["run_id"]) == ("user_to_agent", "pending", None)
    assert client.gateway.model.requests == []
    assert client.runs(agent) == []
    assert client.get(agent)["status"] == "idle"


def test_the_same_key_stores_one_message(client: ManagedClient) -> None:
    agent = client.create()
    key = {"Idempotency-Key": "message-1"}
    first, second = (client.send("POST", f"/{agent}/messages", {"content": "Hello"}, key) for _ in range(2))
    assert (second.status, second.json, second.headers["idempotency-replayed"]) == (202, first.json, "true")
    assert client.send("POST", f"/{agent}/messages", {"content": "Bye"}, key).code == "idempotency_key_reused"
    assert [message["content"] for message in client.messages(agent)] == ["Hello"]
