"""Test the attributes of an audit record."""

from dataclasses import replace
from decimal import Decimal

from spass.core.cost import Cost, CostSource
from spass.core.ids import AgentName, RequestId, SessionId, UserId
from spass.core.messages import TokenUsage
from spass.core.time import Timestamp
from spass.metering.audit import AuditRecord, CallKind, attributes

TOOL = AuditRecord(
    request_id=RequestId("req_b"),
    outer_request_id=RequestId("req_a"),
    parent_request_id=RequestId("req_a"),
    origin_request_id=None,
    at=Timestamp("2026-04-30T08:14:22.123Z"),
    kind=CallKind.TOOL,
    status="ok",
    latency_ms=12,
    token_id="app",
    user=UserId("anna"),
    agent=AgentName("researcher"),
    session=SessionId("ses_1"),
    route="/a1/agents/{name}/chat",
    tool="calculator",
)


def test_the_record_of_a_tool_has_its_name_and_no_price() -> None:
    assert attributes(TOOL) == {
        "request_id": "req_b",
        "outer_request_id": "req_a",
        "parent_request_id": "req_a",
        "at": "2026-04-30T08:14:22.123Z",
        "kind": "tool",
        "status": "ok",
        "latency_ms": 12,
        "token_id": "app",
        "user": "anna",
        "agent": "researcher",
        "session": "ses_1",
        "route": "/a1/agents/{name}/chat",
        "tool": "calculator",
    }


def test_a_record_stores_every_digit_of_its_cost() -> None:
    cost = Cost(Decimal("1E-7"), Decimal("9.2E-8"), CostSource.UPSTREAM, 1)
    record = replace(TOOL, kind=CallKind.CHAT, tool=None, usage=TokenUsage(7, 9), cost=cost)
    kept = attributes(record)
    assert (kept["cost_usd"], kept["cost_eur"], kept["cost_source"]) == ("0.0000001", "0.000000092", "upstream")
    assert (kept["prompt_tokens"], kept["completion_tokens"]) == (7, 9)
