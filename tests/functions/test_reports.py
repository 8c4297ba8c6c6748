"""Usage and audit: sums and single calls, for the caller's tenant only."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from spass.models.errors import AttemptFailed
from tests.functions.gateway import Gateway, Reply

ADMIN = "demo-admin-token"
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hello?"}]}
UNKNOWN_REQUEST = "req_" + "0" * 26


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def used_gateway(gateway: Gateway) -> Gateway:
    """A gateway after two chats with one agent by two users, one with another agent, and one without agent and user."""
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": "one"}, user="ada")
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": "two"}, user="bob")
    gateway.send("POST", "/a1/agents/counting/chat", body={"message": "three"}, user="ada")
    gateway.send("POST", "/v1/chat/completions", body=CHAT)
    return gateway


def _as(user: str | None) -> dict[str, str]:
    return {"SPASS-User-Id": user} if user else {}


def _requests(reply: Reply) -> dict[str | None, int]:
    return {row["key"]: row["requests"] for row in reply.json["usage"]}


def test_usage_is_grouped_by_agent_by_default(used_gateway: Gateway) -> None:
    reply = used_gateway.send("GET", "/v1/usage")
    assert _requests(reply) == {"counting": 1, "plain": 2, None: 1}
    assert reply.json["usage"][1] == {
        "key": "plain",
        "requests": 2,
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "total_tokens": 30,
        "cost_usd": "0.00004",  # 1 USD a million read, 2 a million written
    }
    assert reply.json["total"] == {
        "requests": 4,
        "prompt_tokens": 40,
        "completion_tokens": 20,
        "total_tokens": 60,
        "cost_usd": "0.00008",
    }


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ("model", {"small": 4}),
        ("user", {"ada": 2, "bob": 1, None: 1}),
        ("agent", {"counting": 1, "plain": 2, None: 1}),
    ],
)
def test_every_grouping_has_the_same_total(used_gateway: Gateway, group_by: str, expected: dict[str | None, int]) -> None:
    reply = used_gateway.send("GET", f"/v1/usage?group_by={group_by}", token=ADMIN)
    assert _requests(reply) == expected
    assert reply.json["total"] == used_gateway.send("GET", "/v1/usage").json["total"]
    assert sum(Decimal(row["cost_usd"]) for row in reply.json["usage"]) == Decimal(reply.json["total"]["cost_usd"])


def test_usage_by_user_needs_an_admins_token(used_gateway: Gateway) -> None:
    for query in ("group_by=user", "group_by=user&agent=plain"):
        refused = used_gateway.send("GET", f"/v1/usage?{query}", headers=_as("ada"))
        assert (refused.status, refused.code, refused.json["error"]["param"]) == (403, "admin_required", "group_by")
        assert "bob" not in refused.text


def test_usage_can_be_grouped_and_filtered_by_day(used_gateway: Gateway) -> None:
    today = _today()
    assert _requests(used_gateway.send("GET", "/v1/usage?group_by=day")) == {today: 4}
    assert _requests(used_gateway.send("GET", f"/v1/usage?group_by=day&from={today}&to={today}")) == {today: 4}
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    nothing = used_gateway.send("GET", f"/v1/usage?to={yesterday}").json
    assert (nothing["usage"], nothing["total"]["requests"]) == ([], 0)


def test_usage_can_be_filtered_by_agent(used_gateway: Gateway) -> None:
    assert _requests(used_gateway.send("GET", "/v1/usage?agent=plain&group_by=user", token=ADMIN)) == {"ada": 1, "bob": 1}
    assert _requests(used_gateway.send("GET", "/v1/usage?agent=nobody")) == {}


def test_the_cost_header_equals_the_counted_cost(gateway: Gateway) -> None:
    chat = gateway.send("POST", "/a1/agents/plain/chat", body={"message": "one"})
    total = gateway.send("GET", "/v1/usage").json["total"]
    assert Decimal(total["cost_usd"]) == Decimal(chat.headers["spass-cost-usd"])


def test_usage_does_not_include_other_tenants(used_gateway: Gateway) -> None:
    for token in ("other-token", "sibling-token"):
        assert used_gateway.send("GET", "/v1/usage", token=token).json["usage"] == []


def test_a_reset_sets_the_counters_to_zero_and_counting_continues(used_gateway: Gateway) -> None:
    reply = used_gateway.send("DELETE", "/v1/usage", token=ADMIN)
    assert reply.json == {"reset": True}
    assert used_gateway.send("GET", "/v1/usage").json["usage"] == []
    used_gateway.send("POST", "/a1/agents/plain/chat", body={"message": "four"})
    assert _requests(used_gateway.send("GET", "/v1/usage")) == {"plain": 1}


def test_a_reset_of_one_agent_keeps_the_other_counters(used_gateway: Gateway) -> None:
    used_gateway.send("DELETE", "/v1/usage?agent=plain", token=ADMIN)
    assert _requests(used_gateway.send("GET", "/v1/usage")) == {"counting": 1, None: 1}


def test_a_reset_does_not_return_the_spent_budget(gateway: Gateway) -> None:
    gateway.send("POST", "/v1/chat/completions", body=CHAT)
    gateway.set_config(monthly_budget_usd=0.00001)
    gateway.send("DELETE", "/v1/usage", token=ADMIN)
    refused = gateway.send("POST", "/v1/chat/completions", body=CHAT)
    assert (refused.status, refused.code) == (429, "budget_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert len(gateway.model.requests) == 1


def test_the_audit_lists_the_calls_of_a_request(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha"}]})
    chat = gateway.send("POST", "/a1/agents/reading/chat", body={"message": "private words"})
    reply = gateway.send("GET", f"/v1/audit/{chat.headers['spass-request-id']}", headers=_as("ada"))
    assert reply.json["request_id"] == chat.json["request_id"]
    embedding, answer = reply.json["calls"]
    assert (embedding["kind"], embedding["model"], embedding["status"]) == ("embedding", "mini-embed", "ok")
    assert (answer["kind"], answer["model"], answer["agent"], answer["user"]) == ("chat", "small", "reading", "ada")
    assert (answer["prompt_tokens"], answer["completion_tokens"]) == (10, 5)
    assert "private" not in reply.text


def test_a_sub_call_is_below_its_call(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha"}]})
    body = {"name": "rag_query", "arguments": {"index_id": "notes", "query": "alpha"}}
    reply = gateway.send("POST", "/v1/tools/execute", body=body)
    (tool,) = gateway.send("GET", f"/v1/audit/{reply.headers['spass-request-id']}").json["calls"]
    assert (tool["kind"], tool["tool"]) == ("tool", "rag_query")
    (embedding,) = tool["calls"]
    assert (embedding["kind"], embedding["parent_request_id"]) == ("embedding", tool["request_id"])


def test_a_failed_call_has_its_error_code_as_status(gateway: Gateway) -> None:
    gateway.model.failure = AttemptFailed("down")
    failed = gateway.send("POST", "/v1/chat/completions", body=CHAT)
    (call,) = gateway.send("GET", f"/v1/audit/{failed.headers['spass-request-id']}").json["calls"]
    assert (call["status"], call["kind"]) == (failed.code, "chat")


@pytest.mark.parametrize(("sender", "stranger"), [("ada", "bob"), ("ada", None), (None, "ada")])
def test_another_users_request_is_not_found_except_by_an_admin(
    gateway: Gateway, sender: str | None, stranger: str | None
) -> None:
    request_id = gateway.send("POST", "/v1/chat/completions", body=CHAT, headers=_as(sender)).headers["spass-request-id"]
    other_reply, unknown_reply = (
        gateway.send("GET", f"/v1/audit/{one}", headers=_as(stranger)) for one in (request_id, UNKNOWN_REQUEST)
    )
    assert (other_reply.status, other_reply.code) == (404, "request_not_found")
    assert "for the user that SPASS-User-Id names" in other_reply.json["error"]["message"]
    assert {**other_reply.json["error"], "param": None, "message": ""} == {
        **unknown_reply.json["error"],
        "param": None,
        "message": "",
    }
    for reply in (
        gateway.send("GET", f"/v1/audit/{request_id}", headers=_as(sender)),
        gateway.send("GET", f"/v1/audit/{request_id}", headers=_as(sender), token="chat-only-token"),
        gateway.send("GET", f"/v1/audit/{request_id}", headers=_as(stranger), token=ADMIN),
    ):
        (call,) = reply.json["calls"]
        assert call["user"] == sender


@pytest.mark.parametrize("token", ["other-token", "sibling-token"])
def test_another_tenants_request_is_not_found(gateway: Gateway, token: str) -> None:
    request_id = gateway.send("POST", "/v1/chat/completions", body=CHAT).headers["spass-request-id"]
    other_reply, unknown_reply = (gateway.send("GET", f"/v1/audit/{one}", token=token) for one in (request_id, UNKNOWN_REQUEST))
    assert (other_reply.status, other_reply.code) == (404, "request_not_found")
    assert other_reply.json["error"] == unknown_reply.json["error"]


def test_a_request_without_calls_is_not_found(gateway: Gateway) -> None:
    request_id = gateway.send("GET", "/v1/models").headers["spass-request-id"]
    assert gateway.send("GET", f"/v1/audit/{request_id}").code == "request_not_found"
