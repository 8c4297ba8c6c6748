"""A first message that is refused leaves no session, and no session begins with an agent that its token cannot use."""

import pytest

from spass.core.messages import Json
from tests.functions.gateway import Gateway
from tests.stream_grammar import parse_events

SESSIONS = "/a1/agents/plain/sessions"
CHAT = "/c1/agents/plain/chat"
EARLIER = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]


def chat(message_id: str, **fields: Json) -> dict[str, Json]:
    return {"message_id": message_id, "messages": [{"role": "user", "content": "four"}], **fields}


@pytest.mark.parametrize(
    "body",
    [
        chat("m1"),
        chat("m1", session_id="notes"),
        chat("m1", messages=[*EARLIER, {"role": "user", "content": "four"}]),
        chat(
            "m1", messages=[*EARLIER, *({"role": role, "content": "x" * 200_000} for role in ("user", "assistant")), *EARLIER[:1]]
        ),
    ],
    ids=["without a name", "with a name", "with a history", "with a history in the bucket"],
)
def test_a_first_message_that_the_budget_refuses_leaves_no_session(gateway: Gateway, body: dict[str, Json]) -> None:
    gateway.set_config(monthly_budget_usd=0)
    for _ in range(2):
        refused = gateway.send("POST", CHAT, body=body)
        assert "budget_exceeded" in refused.text
        assert gateway.send("GET", SESSIONS).json["sessions"] == []
        assert gateway.send("GET", f"{CHAT}/m1").code == "stream_not_found"
    assert gateway.model.requests == []
    gateway.set_config(monthly_budget_usd=None)
    assert parse_events(gateway.send("POST", CHAT, body=body).text)[-1]["type"] == "done"
    (session,) = gateway.send("GET", SESSIONS).json["sessions"]
    messages = body["messages"]
    assert isinstance(messages, list)
    assert session["message_count"] == len(messages) + 1


def test_a_later_message_that_the_budget_refuses_leaves_its_session_as_it_was(gateway: Gateway) -> None:
    gateway.send("POST", CHAT, body=chat("m1", session_id="notes"))
    before = gateway.send("GET", SESSIONS).json["sessions"]
    gateway.set_config(monthly_budget_usd=0)
    assert "budget_exceeded" in gateway.send("POST", CHAT, body=chat("m2", session_id="notes")).text
    assert gateway.send("GET", SESSIONS).json["sessions"] == before != []


def test_no_session_begins_with_an_agent_whose_model_the_token_may_not_use(gateway: Gateway) -> None:
    refused = gateway.send("POST", "/a1/agents/costly/sessions")
    asked = gateway.send("POST", "/a1/agents/costly/chat", body={"message": "x"})
    assert (refused.status, refused.json["error"]) == (403, asked.json["error"])
    assert gateway.send("GET", "/a1/agents/costly/sessions").json["sessions"] == []
