"""The workspace of a session: fixed when the session is created, the agent's unless the client names another one."""

from typing import Any

import pytest

from tests.functions.gateway import Gateway

SESSIONS = "/a1/agents/director/sessions"
CHAT = "/c1/agents/director/chat"


@pytest.fixture(autouse=True)
def _director(gateway: Gateway) -> None:
    file = gateway.services.settings.agents / "director.yaml"
    file.write_text("name: director\nmodel: small\nworkspace: default\n")


def chat_body(message_id: str, **more: object) -> dict[str, Any]:
    return {"message_id": message_id, "messages": [{"role": "user", "content": "Hi"}], **more}


@pytest.mark.parametrize(("body", "workspace"), [(None, "default"), ({"workspace": "other"}, "other")])
def test_a_session_shows_its_workspace(gateway: Gateway, body: object, workspace: str) -> None:
    created = gateway.send("POST", SESSIONS, body=body).json
    assert created["workspace"] == workspace
    assert gateway.send("GET", f"{SESSIONS}/{created['id']}").json["workspace"] == workspace
    (listed,) = gateway.send("GET", SESSIONS).json["sessions"]
    assert listed["workspace"] == workspace


def test_a_session_of_an_agent_without_a_workspace_has_none(gateway: Gateway) -> None:
    assert gateway.send("POST", "/a1/agents/plain/sessions").json["workspace"] is None


@pytest.mark.parametrize("target", ["/a1/agents/plain/sessions", "/c1/agents/plain/chat"])
def test_an_agent_without_a_workspace_takes_none(gateway: Gateway, target: str) -> None:
    before = gateway.stored()
    body = chat_body("m1") if target.endswith("chat") else {}
    reply = gateway.send("POST", target, body={**body, "workspace": "default"})
    assert reply.code == "invalid_request"
    assert reply.json["error"]["param"] == "workspace"
    assert gateway.stored() == before


def test_a_chat_creates_its_session_with_the_workspace_that_it_names(gateway: Gateway) -> None:
    gateway.send("POST", CHAT, body=chat_body("m1", session_id="notes", workspace="other"))
    (session,) = gateway.send("GET", SESSIONS).json["sessions"]
    assert session["workspace"] == "other"
    assert gateway.send("POST", CHAT, body=chat_body("m2", session_id="notes")).status == 200
    assert gateway.send("POST", CHAT, body=chat_body("m3", session_id="notes", workspace="other")).status == 200


def test_a_chat_that_names_another_workspace_than_its_session_is_refused(gateway: Gateway) -> None:
    session = gateway.send("POST", SESSIONS).json["id"]
    gateway.send("POST", CHAT, body=chat_body("m1", session_id=session))
    before = gateway.stored()
    reply = gateway.send("POST", CHAT, body=chat_body("m2", session_id=session, workspace="other"))
    assert reply.code == "invalid_request"
    assert reply.json["error"]["param"] == "workspace"
    assert gateway.stored() == before
    assert gateway.send("GET", f"{CHAT}/m2").code == "stream_not_found"
    assert gateway.send("POST", CHAT, body=chat_body("m3", session_id=session)).status == 200


@pytest.mark.parametrize("workspace", ["", "a/b", "x" * 129, "..", 7])
def test_a_malformed_workspace_is_refused(gateway: Gateway, workspace: object) -> None:
    assert gateway.send("POST", SESSIONS, body={"workspace": workspace}).code == "invalid_request"
    assert gateway.send("POST", CHAT, body=chat_body("m1", workspace=workspace)).code == "invalid_request"
