"""What calls took, summed up and one by one: for their own tenant alone."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from spass.llm.errors import BackendError
from tests.functions.gateway import Gateway, Reply

ADMIN = "demo-admin-token"
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hello?"}]}
NOBODY = "req_" + "0" * 26


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def asked(gateway: Gateway) -> Gateway:
    """Two chats of one agent by two users, one of another agent, one of no agent and no user."""
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": "one"}, user="ada")
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": "two"}, user="bob")
    gateway.send("POST", "/a1/agents/counting/chat", body={"message": "three"}, user="ada")
    gateway.send("POST", "/v1/chat/completions", body=CHAT)
    return gateway


def _as(user: str | None) -> dict[str, str]:
    return {"SPASS-User-Id": user} if user else {}


def _requests(reply: Reply) -> dict[str | None, int]:
    return {row["key"]: row["requests"] for row in reply.json["usage"]}


def test_usage_is_summed_up_by_agent_unless_asked_otherwise(asked: Gateway) -> None:
    reply = asked.send("GET", "/v1/usage")
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
def test_usage_by_each_group_has_the_same_total(asked: Gateway, group_by: str, expected: dict[str | None, int]) -> None:
    reply = asked.send("GET", f"/v1/usage?group_by={group_by}", token=ADMIN)
    assert _requests(reply) == expected
    assert reply.json["total"] == asked.send("GET", "/v1/usage").json["total"]
    assert sum(Decimal(row["cost_usd"]) for row in reply.json["usage"]) == Decimal(reply.json["total"]["cost_usd"])


def test_usage_by_user_is_for_admins_alone(asked: Gateway) -> None:
    for query in ("group_by=user", "group_by=user&agent=plain"):
        refused = asked.send("GET", f"/v1/usage?{query}", headers=_as("ada"))
        assert (refused.status, refused.code, refused.json["error"]["param"]) == (403, "admin_required", "group_by")
        assert "bob" not in refused.text


def test_usage_by_day_and_of_days(asked: Gateway) -> None:
    today = _today()
    assert _requests(asked.send("GET", "/v1/usage?group_by=day")) == {today: 4}
    assert _requests(asked.send("GET", f"/v1/usage?group_by=day&from={today}&to={today}")) == {today: 4}
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    nothing = asked.send("GET", f"/v1/usage?to={yesterday}").json
    assert (nothing["usage"], nothing["total"]["requests"]) == ([], 0)


def test_usage_of_one_agent(asked: Gateway) -> None:
    assert _requests(asked.send("GET", "/v1/usage?agent=plain&group_by=user", token=ADMIN)) == {"ada": 1, "bob": 1}
    assert _requests(asked.send("GET", "/v1/usage?agent=nobody")) == {}


def test_a_headers_cost_is_what_is_counted(gateway: Gateway) -> None:
    chat = gateway.send("POST", "/a1/agents/plain/chat", body={"message": "one"})
    total = gateway.send("GET", "/v1/usage").json["total"]
    assert Decimal(total["cost_usd"]) == Decimal(chat.headers["spass-cost-usd"])


def test_nobody_elses_calls_are_counted_in(asked: Gateway) -> None:
    for token in ("other-token", "sibling-token"):
        assert asked.send("GET", "/v1/usage", token=token).json["usage"] == []


def test_an_admin_sets_the_counters_back_to_nothing_and_they_count_on(asked: Gateway) -> None:
    reply = asked.send("DELETE", "/v1/usage", token=ADMIN)
    assert reply.json == {"reset": True}
    assert asked.send("GET", "/v1/usage").json["usage"] == []
    asked.send("POST", "/a1/agents/plain/chat", body={"message": "four"})
    assert _requests(asked.send("GET", "/v1/usage")) == {"plain": 1}


def test_the_counters_of_one_agent_are_reset_alone(asked: Gateway) -> None:
    asked.send("DELETE", "/v1/usage?agent=plain", token=ADMIN)
    assert _requests(asked.send("GET", "/v1/usage")) == {"counting": 1, None: 1}


def test_a_reset_gives_no_spent_budget_back(gateway: Gateway) -> None:
    gateway.send("POST", "/v1/chat/completions", body=CHAT)
    gateway.send("PUT", "/v1/tenant/config", token=ADMIN, body={"monthly_budget_usd": 0.00001})
    gateway.send("DELETE", "/v1/usage", token=ADMIN)
    refused = gateway.send("POST", "/v1/chat/completions", body=CHAT)
    assert (refused.status, refused.code) == (429, "budget_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert len(gateway.model.requests) == 1


def test_the_calls_of_a_request_are_told_by_its_id(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha"}]})
    chat = gateway.send("POST", "/a1/agents/reading/chat", body={"message": "private words"})
    reply = gateway.send("GET", f"/v1/audit/{chat.headers['spass-request-id']}", headers=_as("ada"))
    assert reply.json["request_id"] == chat.json["request_id"]
    embedding, answer = reply.json["calls"]
    assert (embedding["kind"], embedding["model"], embedding["status"]) == ("embedding", "mini-embed", "ok")
    assert (answer["kind"], answer["model"], answer["agent"], answer["user"]) == ("chat", "small", "reading", "ada")
    assert (answer["prompt_tokens"], answer["completion_tokens"]) == (10, 5)
    assert "private" not in reply.text


def test_a_call_stands_below_the_call_that_it_was_made_for(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha"}]})
    body = {"name": "rag_query", "arguments": {"index_id": "notes", "query": "alpha"}}
    ran = gateway.send("POST", "/v1/tools/execute", body=body)
    (tool,) = gateway.send("GET", f"/v1/audit/{ran.headers['spass-request-id']}").json["calls"]
    assert (tool["kind"], tool["tool"]) == ("tool", "rag_query")
    (embedding,) = tool["calls"]
    assert (embedding["kind"], embedding["parent_request_id"]) == ("embedding", tool["request_id"])


def test_a_call_that_failed_is_told_with_its_code(gateway: Gateway) -> None:
    gateway.model.failure = BackendError("down")
    failed = gateway.send("POST", "/v1/chat/completions", body=CHAT)
    (call,) = gateway.send("GET", f"/v1/audit/{failed.headers['spass-request-id']}").json["calls"]
    assert (call["status"], call["kind"]) == (failed.code, "chat")


@pytest.mark.parametrize(("sender", "stranger"), [("ada", "bob"), ("ada", None), (None, "ada")])
def test_another_users_request_looks_like_an_absent_one_but_to_an_admin(
    gateway: Gateway, sender: str | None, stranger: str | None
) -> None:
    made = gateway.send("POST", "/v1/chat/completions", body=CHAT, headers=_as(sender)).headers["spass-request-id"]
    theirs, none = (gateway.send("GET", f"/v1/audit/{one}", headers=_as(stranger)) for one in (made, NOBODY))
    assert (theirs.status, theirs.code) == (404, "request_not_found")
    assert "for the user that SPASS-User-Id names" in theirs.json["error"]["message"]
    assert {**theirs.json["error"], "param": None, "message": ""} == {**none.json["error"], "param": None, "message": ""}
    for sees in (
        gateway.send("GET", f"/v1/audit/{made}", headers=_as(sender)),
        gateway.send("GET", f"/v1/audit/{made}", headers=_as(sender), token="chat-only-token"),
        gateway.send("GET", f"/v1/audit/{made}", headers=_as(stranger), token=ADMIN),
    ):
        (call,) = sees.json["calls"]
        assert call["user"] == sender


@pytest.mark.parametrize("token", ["other-token", "sibling-token"])
def test_another_tenants_request_looks_like_an_absent_one(gateway: Gateway, token: str) -> None:
    made = gateway.send("POST", "/v1/chat/completions", body=CHAT).headers["spass-request-id"]
    theirs, none = (gateway.send("GET", f"/v1/audit/{one}", token=token) for one in (made, NOBODY))
    assert (theirs.status, theirs.code) == (404, "request_not_found")
    assert theirs.json["error"] == none.json["error"]


def test_a_request_that_called_nothing_has_no_tree(gateway: Gateway) -> None:
    made = gateway.send("GET", "/v1/models").headers["spass-request-id"]
    assert gateway.send("GET", f"/v1/audit/{made}").code == "request_not_found"
