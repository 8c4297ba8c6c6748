"""What the routes of managed agents refuse: the answer says why, and nothing changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spass.llm.router import Router
from tests.functions.gateway import Gateway
from tests.functions.managed_agents import ADA, ManagedClient

MAX_BYTES = 256 * 1024
CHAT = {"message_id": "m1", "messages": [{"role": "user", "content": "Hello"}]}
NO_AGENT, NO_RUN = "agt_" + "0" * 26, "run_" + "0" * 26

BAD_FIELDS: Mapping[str, tuple[Mapping[str, object], int, str, str]] = {
    "a blank name": ({"name": " "}, 400, "invalid_request", "name"),
    "no text as a name": ({"name": 7}, 400, "invalid_request", "name"),
    "a name with a line break": ({"name": "a\nb"}, 400, "invalid_request", "name"),
    "a very long name": ({"name": "x" * 5000}, 400, "invalid_request", "name"),
    "an unknown model": ({"model": "gpt-99"}, 404, "model_not_found", "model"),
    "a model for embeddings": ({"model": "mini-embed"}, 400, "invalid_request", "model"),
    "a model of other tokens": ({"model": "dear"}, 403, "model_not_allowed", "model"),
    "an unknown tool": ({"tools": ["calculator", "teleport"]}, 404, "tool_not_found", "tools"),
    "a tool twice": ({"tools": ["calculator", "calculator"]}, 400, "invalid_request", "tools"),
    "no list of tools": ({"tools": "calculator"}, 400, "invalid_request", "tools"),
    "a prompt of no text": ({"system_prompt": ["x"]}, 400, "invalid_request", "system_prompt"),
    "an unknown parameter": ({"params": {"max_tuns": 2}}, 400, "invalid_request", "params.max_tuns"),
    "a parameter of another type": ({"params": {"temperature": "hot"}}, 400, "invalid_request", "params.temperature"),
    "an operator of its own": ({"params": {"operator_id": "mine"}}, 400, "invalid_request", "params.operator_id"),
    "an unknown field": ({"colour": "red"}, 400, "invalid_request", "colour"),
    "an id": ({"id": NO_AGENT}, 400, "invalid_request", "id"),
    "an owner": ({"owner": "bob"}, 400, "invalid_request", "owner"),
    "a status": ({"status": "idle"}, 400, "invalid_request", "status"),
}


@pytest.fixture
def client(gateway: Gateway) -> ManagedClient:
    return ManagedClient(gateway)


def assert_refused(client: ManagedClient, method: str, path: str, body: object, status: int, code: str, param: str) -> None:
    before = client.gateway.stored()
    for headers in ({}, {"Idempotency-Key": f"{method}-{param}-{code}"}):
        reply = client.send(method, path, body, headers)
        assert (reply.status, reply.code) == (status, code), reply.text
        assert reply.json["error"]["param"] == param, reply.text
        assert reply.json["error"]["message"].rstrip().endswith((".", "?", ")", "…", "]")) or code == "invalid_request"
    assert client.gateway.stored() == before
    assert client.gateway.model.requests == []


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_bad_field_of_a_new_agent_is_refused(client: ManagedClient, name: str) -> None:
    change, status, code, param = BAD_FIELDS[name]
    assert_refused(client, "POST", "", {"name": "a", "agent": "simple", **change}, status, code, param)


@pytest.mark.parametrize("name", list(BAD_FIELDS))
def test_a_bad_change_of_an_agent_is_refused(client: ManagedClient, name: str) -> None:
    change, status, code, param = BAD_FIELDS[name]
    assert_refused(client, "PATCH", f"/{client.create()}", change, status, code, param)


@pytest.mark.parametrize(
    ("agent", "fields", "status", "code", "param"),
    [
        ("nobody", {}, 404, "agent_not_found", "agent"),
        ("../plain", {}, 404, "agent_not_found", "agent"),
        ("", {}, 400, "invalid_request", "agent"),
        ("plain", {"model": "small"}, 400, "invalid_request", "model"),
        ("plain", {"tools": []}, 400, "invalid_request", "tools"),
        ("plain", {"system_prompt": "x"}, 400, "invalid_request", "system_prompt"),
        ("plain", {"params": {}}, 400, "invalid_request", "params"),
    ],
)
def test_an_agent_that_cannot_run_is_not_created(
    client: ManagedClient, agent: str, fields: Mapping[str, object], status: int, code: str, param: str
) -> None:
    before = client.gateway.stored()
    reply = client.send("POST", body={"name": "a", "agent": agent, **fields})
    assert (reply.status, reply.code) == (status, code), reply.text
    assert reply.json["error"]["param"] in {param, None}
    assert client.gateway.stored() == before


def test_an_agent_whose_file_has_a_model_of_other_tokens_takes_no_messages(client: ManagedClient) -> None:
    agent = client.create(agent="costly")
    before = client.gateway.stored()
    for path, body in (("messages", {"content": "Hello", "stream": True}), ("run", {"input": "Hello"})):
        reply = client.send("POST", f"/{agent}/{path}", body)
        assert (reply.status, reply.code) == (403, "model_not_allowed"), path
    assert client.gateway.stored() == before


def test_an_agent_needs_a_name_and_a_kind(client: ManagedClient) -> None:
    for body, param in (({}, "name"), ({"agent": "simple"}, "name"), ({"name": "a"}, "agent")):
        assert_refused(client, "POST", "", body, 400, "invalid_request", param)


@pytest.mark.parametrize("field", ["id", "agent", "created_at", "status", "error"])
def test_what_a_patch_cannot_change_is_refused_by_name(client: ManagedClient, field: str) -> None:
    assert_refused(client, "PATCH", f"/{client.create()}", {field: "x"}, 400, "invalid_request", field)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"name": None}, "name"), ({"paused": None}, "paused"), ({"paused": "yes"}, "paused"), ({"paused": 1}, "paused")],
)
def test_a_patch_with_a_wrong_value_is_refused(client: ManagedClient, body: object, param: str) -> None:
    assert_refused(client, "PATCH", f"/{client.create()}", body, 400, "invalid_request", param)


CONTENTS: Mapping[str, Mapping[str, object]] = {
    "absent": {},
    "null": {"content": None},
    "empty": {"content": ""},
    "blank": {"content": " \n\t"},
    "a NUL": {"content": "a\0b"},
    "too long": {"content": "ü" * (MAX_BYTES // 2 + 1)},
    "a list": {"content": ["Hello"]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_message_without_a_proper_content_is_refused(client: ManagedClient, name: str, stream: bool) -> None:
    body = {**CONTENTS[name], "stream": stream}
    assert_refused(client, "POST", f"/{client.create()}/messages", body, 400, "invalid_request", "content")


@pytest.mark.parametrize("field", ["direction", "id", "seq", "model", "message"])
def test_a_message_takes_nothing_but_content_and_stream(client: ManagedClient, field: str) -> None:
    body = {"content": "Hello", field: "x"}
    assert_refused(client, "POST", f"/{client.create()}/messages", body, 400, "invalid_request", field)


def test_a_message_of_256_kib_is_accepted(client: ManagedClient) -> None:
    agent = client.create()
    text = "ü" * (MAX_BYTES // 2)
    assert client.send("POST", f"/{agent}/messages", {"content": text}).status == 202
    assert [message["content"] for message in client.messages(agent)] == [text]


@pytest.mark.parametrize("body", [{"input": ""}, {"input": "  "}, {"input": 5}, {"input": "x" * (MAX_BYTES + 1)}])
def test_a_run_with_a_bad_input_is_refused(client: ManagedClient, body: object) -> None:
    assert_refused(client, "POST", f"/{client.create()}/run", body, 400, "invalid_request", "input")


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


@pytest.mark.parametrize("run", [NO_RUN, "run_1", "nothing", "agt_" + "0" * 26])
def test_a_run_of_another_agent_is_absent(client: ManagedClient, run: str) -> None:
    agent = client.create()
    for method, tail in (("GET", ""), ("GET", "/stream"), ("DELETE", "")):
        reply = client.send(method, f"/{agent}/runs/{run}{tail}")
        assert (reply.status, reply.code) == (404, "run_not_found"), (method, tail)


def test_the_runs_of_two_agents_are_not_mixed_up(client: ManagedClient) -> None:
    first, second = client.create(), client.create()
    client.send("POST", f"/{first}/messages", {"content": "Hello", "stream": True})
    (run,) = client.runs(first)
    for method, tail in (("GET", ""), ("GET", "/stream"), ("DELETE", "")):
        assert client.send(method, f"/{second}/runs/{run['id']}{tail}").code == "run_not_found", (method, tail)


@pytest.mark.parametrize("value", ["x", "1", "0-1", "1-0", "-1-1", "1-1-1", "1-", "1-1 ", "９-1", "1-9999999999"])
def test_a_malformed_last_event_id_is_refused(client: ManagedClient, value: str) -> None:
    agent = client.create()
    client.send("POST", f"/{agent}/messages", {"content": "Hello", "stream": True})
    (run,) = client.runs(agent)
    headers = {"Last-Event-ID": value} if value.isascii() else {"Last-Event-ID": "x-1"}
    reply = client.send("GET", f"/{agent}/runs/{run['id']}/stream", headers=headers)
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


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=%00", "limit=1&limit=2"])
def test_a_bad_page_is_refused(client: ManagedClient, query: str) -> None:
    agent = client.create()
    for path in ("", f"/{agent}/messages", f"/{agent}/runs"):
        assert client.send("GET", f"{path}?{query}").code == "invalid_request", path


def test_a_cursor_is_valid_only_for_its_own_list(client: ManagedClient) -> None:
    first, second = client.create(), client.create()
    for agent in (first, second):
        for _ in range(2):
            client.send("POST", f"/{agent}/messages", {"content": "Hello"})
    cursor: Any = client.send("GET", f"/{first}/messages?limit=1").json["next_cursor"]
    assert client.send("GET", f"/{first}/messages?cursor={cursor}").status == 200
    for path in ("", f"/{second}/messages", f"/{first}/runs"):
        assert client.send("GET", f"{path}?cursor={cursor}").code == "invalid_request", path
