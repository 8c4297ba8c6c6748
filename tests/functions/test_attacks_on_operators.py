"""Attacks on operators: on the owner in the key, on what belongs to managed agents, on secrets, and on the bill."""

from typing import Final

import pytest

from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway, Reply
from tests.functions.managed_agents import ADA, ManagedClient

SECRET: Final = "demo-admin-token"
FORGED: Final = (
    "token/demo-user",
    "token%2Fdemo-user",
    "token%2fdemo-user",
    "token\\demo-user",
    "token//demo-user",
    "TOKEN/demo-user",
    "token:demo-user",
    "token.demo-user",
    "token@demo-user",
    "token+demo-user",
    "token-demo-user",
    "demo-user",
    "demo-user#asked",
)


def ask(gateway: Gateway, user: str | None, token: str = "demo-token", operator: str = "asked", text: str = "Hello") -> Reply:
    body = {"input": text, "agent": "operative", "params": {"operator_id": operator}, "tools": ["memory_store"]}
    return gateway.send("POST", "/v1/ask", token=token, headers=header(user), body=body)


def header(user: str | None) -> dict[str, str]:
    return {} if user is None else {"SPASS-User-Id": user}


def read(gateway: Gateway, user: str | None, token: str = "demo-token", operator: str = "asked", method: str = "GET") -> Reply:
    return gateway.send(method, f"/v1/operators/{operator}", token=token, headers=header(user))


@pytest.mark.parametrize("user", FORGED)
def test_no_header_names_the_owner_that_stands_for_a_token(gateway: Gateway, user: str) -> None:
    gateway.model.script = in_turn([calls(("memory_store", {"content": "The secret."})), "Done."])
    assert ask(gateway, None).status == 200
    before = gateway.stored()
    for token in ("demo-token", "demo-admin-token", "sibling-token"):
        found, gone = read(gateway, user, token), read(gateway, user, token, method="DELETE")
        assert (found.status, gone.status) in ((404, 200), (400, 400)), found.text
        assert gone.status == 400 or gone.json == {"deleted": False}
        assert read(gateway, None, token).status == (200 if token == "demo-token" else 404)
    assert gateway.stored() == before
    ask(gateway, user)
    assert not [m for request in gateway.model.requests[2:] for m in request.messages if "secret" in m.content]


@pytest.mark.parametrize("operator", ["Asked", "asked.", "aske", "asked-2", "asked:", "ASKED"])
def test_an_operator_of_a_similar_name_is_another_one(gateway: Gateway, operator: str) -> None:
    assert ask(gateway, "ada").status == 200
    assert read(gateway, "ada", operator=operator).code == "operator_not_found"
    assert read(gateway, "ada", operator=operator, method="DELETE").json == {"deleted": False}
    assert read(gateway, "ada").status == 200


@pytest.mark.parametrize("user", ["Ada", "ADA", "ada.", "ad", "ada@", "ada-2", "+ada"])
def test_a_user_of_a_similar_name_is_another_owner(gateway: Gateway, user: str) -> None:
    assert ask(gateway, "ada").status == 200
    assert read(gateway, user).code == "operator_not_found"
    assert read(gateway, user, method="DELETE").json == {"deleted": False}
    assert read(gateway, "ada", "sibling-token").code == "operator_not_found"
    assert read(gateway, "ada").status == 200


def managed(gateway: Gateway, user: str | None = "ada", **fields: object) -> tuple[ManagedClient, str]:
    client = ManagedClient(gateway, user=user)
    agent = client.create(**{"agent": "operative", "model": "small", "tools": ["memory_store"], **fields})
    gateway.model.script = in_turn([calls(("memory_store", {"content": "The secret."})), "The secret."])
    assert client.send("POST", f"/{agent}/messages", {"content": "The secret.", "stream": True}).status == 200
    return client, agent


@pytest.mark.parametrize("user", ["ada", None])
def test_what_a_managed_agent_remembers_is_its_owners(gateway: Gateway, user: str | None) -> None:
    client, agent = managed(gateway, user)
    run = client.runs(agent)[0]["id"]
    before, asked = gateway.stored(), len(gateway.model.requests)
    for other, token in (("bob", "demo-token"), (None, "demo-admin-token"), ("ada", "sibling-token"), (None, "sibling-token")):
        assert read(gateway, other, token, agent).code == "operator_not_found"
        notes = gateway.send("GET", f"/v1/operators/{agent}/notes", token=token, headers=header(other))
        assert notes.code == "operator_not_found"
        assert read(gateway, other, token, agent, "DELETE").json == {"deleted": False}
        stream = gateway.send("GET", f"/v1/managed-agents/{agent}/runs/{run}/stream", token=token, headers=header(other))
        assert stream.code == "agent_not_found"
        for name in (agent, "operative"):
            for method in ("GET", "DELETE"):
                reply = gateway.send(method, f"/c1/agents/{name}/chat/{run}", token=token, user=other or "token")
                assert reply.status == 404, reply.text
    assert gateway.stored() == before
    assert len(gateway.model.requests) == asked
    gateway.model.script = "I know nothing."
    assert ask(gateway, "bob", operator=agent).status == 200
    assert "secret" not in str(gateway.model.requests[asked:])


def test_the_session_of_a_managed_agent_takes_messages_through_its_mailbox_alone(gateway: Gateway) -> None:
    _, agent = managed(gateway, agent="plain", model=None, tools=None)
    session = read(gateway, "ada", operator=agent).json["session_id"]
    before, asked = gateway.stored(), len(gateway.model.requests)
    message = {"role": "user", "content": "Hello"}
    for path, body in (
        (f"/a1/agents/plain/sessions/{session}/messages", {"message": "Hello"}),
        ("/c1/agents/plain/chat", {"message_id": "m", "session_id": session, "messages": [message]}),
    ):
        reply = gateway.send("POST", path, body=body)
        assert (reply.status, reply.code) == (400, "invalid_request"), reply.text
    assert (gateway.stored(), len(gateway.model.requests)) == (before, asked)
    assert gateway.send("GET", f"/a1/agents/plain/sessions/{session}/messages", user="bob").code == "session_not_found"


@pytest.mark.parametrize("where", ["answer", "note", "state"])
def test_a_secret_that_a_model_repeats_is_stored_nowhere(gateway: Gateway, where: str) -> None:
    client = ManagedClient(gateway)
    agent = client.create(agent="operative", model="small", tools=["memory_store"], system_prompt="Work.")
    store = {"content": f"It is {SECRET}.", **({"key": "state"} if where == "state" else {})}
    gateway.model.script = f"It is {SECRET}." if where == "answer" else in_turn([calls(("memory_store", store)), "Done."])
    for stream in (True, False):
        reply = client.send("POST", f"/{agent}/messages", {"content": "What is it?", "stream": stream})
        assert reply.status < 300
        assert SECRET not in reply.text
    assert SECRET not in str(gateway.stored())
    assert SECRET not in client.send("GET", f"/{agent}/messages").text
    assert SECRET not in read(gateway, "ada", operator=agent).text
    assert SECRET not in gateway.send("GET", f"/v1/operators/{agent}/notes", headers=ADA).text


@pytest.mark.parametrize("content", ["\u200b", "\u2060 \ufeff", "\u2800", "\U000e0041\U000e0042", "\u3164", "\u00ad"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_message_that_no_model_can_see_does_not_block_the_mailbox(gateway: Gateway, content: str, stream: bool) -> None:
    client = ManagedClient(gateway)
    agent = client.create()
    before = gateway.stored()
    schedule = {"expression": "rate(1 hour)", "input": content}
    for path, body in (
        (f"/{agent}/messages", {"content": content, "stream": stream}),
        (f"/{agent}/run", {"input": content}),
        ("", {"name": "a", "agent": "simple", "schedule": schedule}),
    ):
        reply = client.send("POST", path, body)
        assert (reply.status, reply.code) == (400, "invalid_request"), reply.text
    assert gateway.stored() == before
