"""What the routes of managed agents refuse: the answer says why, and nothing changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spass.models.router import Router
from tests.functions.gateway import Gateway
from tests.functions.managed_agents import ADA, ManagedClient

CHAT = {"message_id": "m1", "messages": [{"role": "user", "content": "Hello"}]}
NO_AGENT, NO_RUN = "agt_" + "0" * 26, "run_" + "0" * 26


def test_an_agent_whose_file_has_a_model_of_other_tokens_takes_no_messages(client: ManagedClient) -> None:
    agent = client.create(agent="costly")
    before = client.gateway.stored()
    for path, body in (("messages", {"content": "Hello", "stream": True}), ("run", {"input": "Hello"})):
        reply = client.send("POST", f"/{agent}/{path}", body)
        assert (reply.status, reply.code) == (403, "model_not_allowed"), path
    assert client.gateway.stored() == before


BAD_FIELDS: Mapping[str, tuple[Mapping[str, object], str]] = {
    "a blank name": ({"name": " "}, "name"),
    "no text as a name": ({"name": 7}, "name"),
    "a name with a line break": ({"name": "a\nb"}, "name"),
    "a very long name": ({"name": "x" * 5000}, "name"),
    "no list of tools": ({"tools": "calculator"}, "tools"),
    "a prompt of no text": ({"system_prompt": ["x"]}, "system_prompt"),
    "an unknown parameter": ({"params": {"max_tuns": 2}}, "params.max_tuns"),
    "a parameter of another type": ({"params": {"temperature": "hot"}}, "params.temperature"),
    "an operator of its own": ({"params": {"operator_id": "mine"}}, "params.operator_id"),
    "an unknown field": ({"colour": "red"}, "colour"),
    "an owner": ({"owner": "bob"}, "owner"),
    "an id": ({"id": NO_AGENT}, "id"),
    "a status": ({"status": "idle"}, "status"),
    "an error": ({"error": "x"}, "error"),
    "a time": ({"created_at": "x"}, "created_at"),
}
"""What an agent has not, neither a new one nor a changed one. ``test_managed_contract`` has what asking refuses too."""


def assert_refused(client: ManagedClient, method: str, path: str, body: object, param: str) -> None:
    before = client.gateway.stored()
    for headers in ({}, {"Idempotency-Key": f"{method}-{param}"}):
        reply = client.send(method, path, body, headers)
        assert (reply.status, reply.code) == (400, "invalid_request"), reply.text
        assert reply.json["error"]["param"] == param, reply.text
    assert client.gateway.stored() == before
    assert client.gateway.model.requests == []


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_bad_field_is_refused_in_a_new_agent_and_in_a_change(client: ManagedClient, name: str) -> None:
    change, param = BAD_FIELDS[name]
    assert_refused(client, "POST", "", {"name": "a", "agent": "simple", **change}, param)
    assert_refused(client, "PATCH", f"/{client.create()}", change, param)


def test_an_agent_needs_a_name_and_a_kind(client: ManagedClient) -> None:
    bodies: list[Mapping[str, object]] = [{}, {"agent": "simple"}, {"name": "a"}, {"name": "a", "agent": ""}]
    for body, param in zip(bodies, ("name", "name", "agent", "agent"), strict=True):
        assert_refused(client, "POST", "", body, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"agent": "x"}, "agent"), ({"name": None}, "name"), ({"paused": None}, "paused")),
        *(({"paused": "yes"}, "paused"), ({"paused": 1}, "paused")),
    ],
)
def test_a_patch_with_a_wrong_value_is_refused(client: ManagedClient, body: object, param: str) -> None:
    assert_refused(client, "PATCH", f"/{client.create()}", body, param)


CONTENTS: Mapping[str, Mapping[str, object]] = {
    "absent": {},
    "null": {"content": None},
    "empty": {"content": ""},
    "blank": {"content": " \n\t"},
    "a list": {"content": ["Hello"]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_message_without_a_proper_content_is_refused(client: ManagedClient, name: str, stream: bool) -> None:
    body = {**CONTENTS[name], "stream": stream}
    assert_refused(client, "POST", f"/{client.create()}/messages", body, "content")


@pytest.mark.parametrize("field", ["direction", "id", "seq", "model", "message"])
def test_a_message_takes_nothing_but_content_and_stream(client: ManagedClient, field: str) -> None:
    body = {"content": "Hello", field: "x"}
    assert_refused(client, "POST", f"/{client.create()}/messages", body, field)


@pytest.mark.parametrize("body", [{"input": ""}, {"input": "  "}, {"input": 5}])
def test_a_run_with_a_bad_input_is_refused(client: ManagedClient, body: object) -> None:
    assert_refused(client, "POST", f"/{client.create()}/run", body, "input")


@pytest.mark.parametrize("body", [{}, None, {"input": None}])
def test_a_run_with_nothing_to_do_is_refused(client: ManagedClient, body: object) -> None:
    agent = client.create()
    before = client.gateway.stored()
    reply = client.send("POST", f"/{agent}/run", body)
    assert (reply.status, reply.code) == (409, "nothing_to_run")
    assert client.gateway.stored() == before
    assert client.runs(agent) == []


def test_a_paused_agent_takes_no_messages_and_no_runs(client: ManagedClient) -> None:
    agent = client.create()
    client.send("POST", f"/{agent}/messages", {"content": "Hello"})
    assert client.send("PATCH", f"/{agent}", {"paused": True}).json["status"] == "paused"
    before = client.gateway.stored()
    for path, body in (
        ("messages", {"content": "Hello"}),
        ("messages", {"content": "Hello", "stream": True}),
        ("run", {}),
        ("run", {"input": "Hello"}),
    ):
        reply = client.send("POST", f"/{agent}/{path}", body)
        assert (reply.status, reply.code) == (409, "agent_paused"), path
        assert "paused" in reply.json["error"]["message"]
    assert client.gateway.stored() == before
    assert client.gateway.model.requests == []
    client.send("PATCH", f"/{agent}", {"paused": False})
    assert client.send("POST", f"/{agent}/messages", {"content": "Hello"}).status == 202


def routes_of(agent: str, run: str) -> list[tuple[str, str, object]]:
    return [
        ("GET", f"/{agent}", None),
        ("PATCH", f"/{agent}", {"name": "b"}),
        ("DELETE", f"/{agent}", None),
        ("POST", f"/{agent}/messages", {"content": "Hello"}),
        ("POST", f"/{agent}/messages", {"content": "Hello", "stream": True}),
        ("GET", f"/{agent}/messages", None),
        ("POST", f"/{agent}/run", {"input": "Hello"}),
        ("GET", f"/{agent}/runs", None),
        ("GET", f"/{agent}/runs/{run}", None),
        ("GET", f"/{agent}/runs/{run}/stream", None),
        ("DELETE", f"/{agent}/runs/{run}", None),
    ]


def test_an_agent_of_somebody_else_looks_like_an_absent_one(gateway: Gateway, client: ManagedClient) -> None:
    agent = client.create(name="private-name", system_prompt="private-prompt")
    client.send("POST", f"/{agent}/messages", {"content": "private-word", "stream": True})
    (run,) = client.runs(agent)
    before = {key: value for key, value in gateway.stored().items() if key.startswith("T#demo#")}
    others = [
        ManagedClient(gateway, user="bob"),
        ManagedClient(gateway, user=None),
        ManagedClient(gateway, token="other-token"),
        ManagedClient(gateway, token="sibling-token"),
        ManagedClient(gateway, user=None, token="chat-only-token"),
    ]
    for other in others:
        for (method, path, body), (_, absent, _) in zip(routes_of(agent, run["id"]), routes_of(NO_AGENT, NO_RUN), strict=True):
            foreign_reply, absent_reply = other.send(method, path, body), other.send(method, absent, body)
            assert (foreign_reply.status, foreign_reply.code) == (404, "agent_not_found"), path
            assert foreign_reply.json["error"] == absent_reply.json["error"]
            assert "SPASS-User-Id" in foreign_reply.json["error"]["message"]
            assert "private" not in foreign_reply.text
        assert other.send("GET").json == {"agents": [], "next_cursor": None}
    assert {key: value for key, value in gateway.stored().items() if key.startswith("T#demo#")} == before


def test_another_token_of_the_tenant_acts_for_the_user_that_it_names(gateway: Gateway, client: ManagedClient) -> None:
    agent = client.create()
    admin = ManagedClient(gateway, token="demo-admin-token")
    assert admin.get(agent)["id"] == agent
    without_user = ManagedClient(gateway, user=None)
    own = without_user.create()
    assert [entry["id"] for entry in without_user.send("GET").json["agents"]] == [own]
    assert admin.send("GET", f"/{own}").code == "agent_not_found"


def test_a_deleted_agent_is_absent_everywhere(client: ManagedClient) -> None:
    agent = client.create()
    client.send("POST", f"/{agent}/messages", {"content": "Hello", "stream": True})
    (run,) = client.runs(agent)
    assert client.send("DELETE", f"/{agent}").json == {"deleted": True}
    for method, path, body in routes_of(agent, run["id"]):
        assert client.send(method, path, body).code == "agent_not_found", path
    assert client.send("GET").json["agents"] == []


def test_a_run_that_the_agent_has_not_is_absent(client: ManagedClient) -> None:
    first, second = client.create(), client.create()
    client.send("POST", f"/{first}/messages", {"content": "Hello", "stream": True})
    (of_another_agent,) = client.runs(first)
    for run in (NO_RUN, "run_1", "nothing", "agt_" + "0" * 26, of_another_agent["id"]):
        for method, tail in (("GET", ""), ("GET", "/stream"), ("DELETE", "")):
            reply = client.send(method, f"/{second}/runs/{run}{tail}")
            assert (reply.status, reply.code) == (404, "run_not_found"), (method, tail)


@pytest.mark.parametrize("value", ["x", "1", "0-1", "1-0", "-1-1", "1-1-1", "1-", "1-1 ", "x-1", "1-9999999999"])
def test_a_malformed_last_event_id_is_refused(client: ManagedClient, value: str) -> None:
    agent = client.create()
    client.send("POST", f"/{agent}/messages", {"content": "Hello", "stream": True})
    (run,) = client.runs(agent)
    reply = client.send("GET", f"/{agent}/runs/{run['id']}/stream", headers={"Last-Event-ID": value})
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "Last-Event-ID")


def test_an_active_run_refuses_another_one_and_the_deletion(client: ManagedClient) -> None:
    agent = client.create()
    run = client.send("POST", f"/{agent}/run", {"input": "Hello"})
    assert (run.status, run.json["status"]) == (202, "queued")
    before = client.gateway.stored()
    for method, path, body in (
        ("POST", "/run", {"input": "Hello"}),
        ("POST", "/run", {}),
        ("POST", "/messages", {"content": "Hello", "stream": True}),
        ("DELETE", "", None),
    ):
        reply = client.send(method, f"/{agent}{path}", body)
        assert (reply.status, reply.code) == (409, "session_busy"), path
        assert reply.json["error"]["details"]["run_id"] == run.json["id"]
        assert run.json["id"] in reply.json["error"]["message"]
        assert reply.headers["retry-after"]
    assert client.gateway.stored() == before
    assert client.send("POST", f"/{agent}/messages", {"content": "Later"}).json["status"] == "pending"


def test_a_model_without_a_backend_stores_nothing(gateway: Gateway, client: ManagedClient, tmp_path: Path) -> None:
    agent = client.create(model="small")
    without = ManagedClient(gateway.reconfigure(tmp_path / "other", "[small, dear, mini-embed]", "[dear, mini-embed]"))
    before = gateway.stored()
    for path, body in (
        ("messages", {"content": "Hello"}),
        ("messages", {"content": "Hello", "stream": True}),
        ("run", {"input": "Hello"}),
    ):
        reply = without.send("POST", f"/{agent}/{path}", body)
        assert (reply.status, reply.code) == (503, "no_backend_available"), path
    assert gateway.stored() == before
    assert without.messages(agent) == without.runs(agent) == []


def test_a_missing_key_fails_a_run_as_it_fails_a_turn(gateway: Gateway, client: ManagedClient, tmp_path: Path) -> None:
    """Only a call reads keys. So the message is stored, and the next run takes it."""
    agent = client.create(model="small")
    other = gateway.reconfigure(tmp_path / "other", "provider: ollama", "provider: openai")
    config = other.services.config
    other.services.router = Router(config.llm, config.models, lambda _: None, provider_of=lambda *_: gateway.model)
    keyless = ManagedClient(other)
    turn = other.send("POST", "/c1/agents/plain/chat", token="demo-token", headers=ADA, body=CHAT)
    answer = keyless.send("POST", f"/{agent}/messages", {"content": "Hello", "stream": True})
    assert (turn.status, answer.status, answer.code) == (200, 503, "no_backend_available")
    assert answer.json["error"] == json.loads(turn.text.rpartition("data: ")[2])["error"]
    [run] = keyless.runs(agent)
    assert (run["status"], run["error"]["code"]) == ("failed", "no_backend_available")
    assert [message["status"] for message in keyless.messages(agent)] == ["pending"]


def test_a_cursor_is_valid_only_for_its_own_list(client: ManagedClient) -> None:
    first, second = client.create(), client.create()
    for agent in (first, second):
        for _ in range(2):
            client.send("POST", f"/{agent}/messages", {"content": "Hello"})
    cursor: Any = client.send("GET", f"/{first}/messages?limit=1").json["next_cursor"]
    assert client.send("GET", f"/{first}/messages?cursor={cursor}").status == 200
    for path in ("", f"/{second}/messages", f"/{first}/runs"):
        assert client.send("GET", f"{path}?cursor={cursor}").code == "invalid_request", path
