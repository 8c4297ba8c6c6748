"""The mailbox of a managed agent over HTTP."""

import pytest

from tests.functions.gateway import Gateway
from tests.functions.managed_agents import ManagedClient


@pytest.fixture
def client(gateway: Gateway) -> ManagedClient:
    return ManagedClient(gateway)


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


def test_the_mailbox_is_read_page_by_page_oldest_first(client: ManagedClient) -> None:
    agent = client.create()
    for number in range(5):
        client.send("POST", f"/{agent}/messages", {"content": str(number)})
    first = client.send("GET", f"/{agent}/messages?limit=3").json
    second = client.send("GET", f"/{agent}/messages?limit=3&cursor={first['next_cursor']}").json
    assert [message["content"] for message in [*first["messages"], *second["messages"]]] == list("01234")
    assert second["next_cursor"] is None


def test_the_same_key_stores_one_message(client: ManagedClient) -> None:
    agent = client.create()
    key = {"Idempotency-Key": "message-1"}
    first, second = (client.send("POST", f"/{agent}/messages", {"content": "Hello"}, key) for _ in range(2))
    assert (second.status, second.json, second.headers["idempotency-replayed"]) == (202, first.json, "true")
    assert client.send("POST", f"/{agent}/messages", {"content": "Bye"}, key).code == "idempotency_key_reused"
    assert [message["content"] for message in client.messages(agent)] == ["Hello"]
