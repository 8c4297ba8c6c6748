"""Test the settings, audit records, usage and budget of a tenant through the API."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Gateway

BERLIN = [
    {"id": "gate", "text": "Das Brandenburger Tor steht am Pariser Platz, gebaut 1791."},
    {"id": "park", "text": "Der Tiergarten ist der größte Park Berlins."},
]
MONTH_SECONDS = 31 * 24 * 3600
WINDOW_SECONDS = 75  # a minute, and the most that buckets and clock skew may add to it


@dataclass(frozen=True, slots=True)
class Tenant:
    """An admin and a user of a tenant that only this file uses."""

    admin: httpx.Client
    user: httpx.Client

    def set(self, **settings: object) -> Any:
        return self.admin.put("/v1/tenant/config", json=settings).raise_for_status().json()

    def ask(self, question: str, **fields: object) -> httpx.Response:
        message = {"role": "user", "content": question}
        return self.user.post("/v1/chat/completions", json={"model": "llama-4-scout", "messages": [message], **fields})

    def usage(self, **query: str) -> Any:
        return self.user.get("/v1/usage", params=query).raise_for_status().json()

    def calls(self, answer: httpx.Response) -> list[Any]:
        """Return the audit records of the calls of a request."""
        tree = self.user.get(f"/v1/audit/{answer.headers['SPASS-Request-Id']}").raise_for_status().json()
        calls: list[Any] = tree["calls"]
        return calls


@pytest.fixture
def tenant(gateway: Gateway) -> Iterator[Tenant]:
    with gateway.client("living-admin-token", "grace") as admin, gateway.client("living-token", "ada") as user:
        yield Tenant(admin, user)


def _content(answer: httpx.Response) -> str:
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def _shape(calls: list[Any]) -> list[Any]:
    """Return the kind or tool of each call, with its sub-calls."""
    return [(call.get("tool") or call["kind"], _shape(call["calls"])) for call in calls]


def test_settings_audit_usage_and_budget_of_a_tenant(tenant: Tenant) -> None:
    # New settings take effect immediately.
    assert tenant.user.put("/v1/tenant/config", json={"memory": "Mine."}).json()["error"]["code"] == "admin_required"
    config = tenant.set(memory="The code of the garden door is 4711.", tools_enabled_default=["calculator"], monthly_budget_usd=5)
    assert {key for key, source in config["sources"].items() if source == "db"} == {
        "memory",
        "tools_enabled_default",
        "monthly_budget_usd",
    }
    memory_answer = tenant.ask("What is the code of the garden door?")
    assert "4711" in _content(memory_answer)
    assert "4711" not in _content(
        tenant.user.post(
            "/v1/chat/completions",
            headers={"SPASS-Augment": "memory=off"},
            json={"model": "llama-4-scout", "messages": [{"role": "user", "content": "What is the code of the garden door?"}]},
        )
    )
    tool_answer = tenant.ask("What is 1791 * 17?")
    assert "30447" in _content(tool_answer)
    assert _shape(tenant.calls(tool_answer)) == [("chat", []), ("calculator", []), ("chat", [])]

    # The audit of an agent's turn is a tree: the sub-calls of a tool are below the tool.
    tenant.user.post("/a1/rag/indices/berlin-info/documents", json={"documents": BERLIN}).raise_for_status()
    question = {"message": "Wann wurde das Brandenburger Tor gebaut? Suche im Index berlin-info."}
    turn = tenant.user.post("/a1/agents/librarian/chat", json=question)
    assert "1791" in turn.raise_for_status().json()["message"]["content"]
    calls = tenant.calls(turn)
    assert _shape(calls) == [("chat", []), ("rag_query", [("embedding", [])]), ("chat", [])]
    assert {call["agent"] for call in calls} == {"librarian"}
    assert sum(Decimal(call["cost_usd"] or 0) for call in calls) == Decimal(turn.headers["SPASS-Cost-Usd"])
    rag_turn = tenant.user.post("/a1/agents/berlin-rag/chat", json={"message": "Welcher Park ist der größte?"})
    assert _shape(tenant.calls(rag_turn)) == [("embedding", []), ("chat", [])]

    # The total does not depend on the grouping.
    by_agent = tenant.usage()
    rows = {row["key"]: row for row in by_agent["usage"]}
    assert set(rows) == {"librarian", "berlin-rag", None}
    assert (rows["librarian"]["requests"], rows["berlin-rag"]["requests"]) == (3, 2)
    assert rows["librarian"]["cost_usd"] == turn.headers["SPASS-Cost-Usd"]
    for group in ("model", "day"):
        assert tenant.usage(group_by=group)["total"] == by_agent["total"]
    by_user = tenant.admin.get("/v1/usage", params={"group_by": "user"}).json()
    assert ([row["key"] for row in by_user["usage"]], by_user["total"]) == (["ada"], by_agent["total"])
    assert [row["key"] for row in tenant.usage(group_by="day")["usage"]] == [datetime.now(UTC).date().isoformat()]

    # A reset clears the usage but not the costs of the month.
    assert tenant.admin.delete("/v1/usage").json() == {"reset": True}
    assert tenant.usage()["usage"] == []
    tenant.set(monthly_budget_usd=float(by_agent["total"]["cost_usd"]) / 2)
    for refused in (tenant.ask("What is 6 * 7?"), tenant.user.post("/a1/agents/librarian/chat", json=question)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert 0 < int(refused.headers["Retry-After"]) <= MONTH_SECONDS
    assert tenant.usage()["usage"] == []
    tenant.set(monthly_budget_usd=None)
    assert "42" in _content(tenant.ask("What is 6 * 7?"))


def test_a_tenant_over_its_tokens_per_minute_gets_a_retry_after_header(tenant: Tenant) -> None:
    tenant.set(tokens_per_minute=60)
    answers = [tenant.ask("How are you today?", max_tokens=20) for _ in range(6)]
    assert answers[0].status_code == 200
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert {answer.json()["error"]["code"] for answer in refused} == {"rate_limited"}
    assert all(0 < int(answer.headers["Retry-After"]) <= WINDOW_SECONDS for answer in refused)
