"""END events of one request."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from spass.core.bus_events import AgentTurnEnd, InferenceEnd, ToolCallEnd
from spass.core.ids import AgentName, RequestId, SessionId, TenantId
from spass.core.messages import FinishReason
from spass.core.time import Timestamp

COMMON: Final[Mapping[str, Any]] = {
    "at": Timestamp("2026-11-20T12:00:00.250Z"),
    "tenant": TenantId("acme"),
    "request_id": RequestId("req_1"),
    "parent_request_id": RequestId("req_1"),
    "agent": AgentName("helper"),
    "kind": "orchestrator",
    "session_id": SessionId("ses_1"),
}


def inference_end(call: str = "req_2", status: str = "ok") -> InferenceEnd:
    return InferenceEnd(
        **COMMON,
        call_id=RequestId(call),
        model="small",
        backend="main",
        attempts=1,
        prompt_tokens=10,
        completion_tokens=5,
        cost_usd=Decimal("0.000125"),
        status=status,
        duration_ms=800,
    )


def tool_call_end(call: str = "req_3", tool: str | None = "calculator", status: str = "ok") -> ToolCallEnd:
    return ToolCallEnd(**COMMON, call_id=RequestId(call), tool=tool, ok=status == "ok", status=status, duration_ms=3)


def turn_end(error: str | None = None, duration_ms: int = 1800) -> AgentTurnEnd:
    return AgentTurnEnd(
        **COMMON,
        turns=2,
        tool_calls=1,
        finish_reason=None if error else FinishReason.STOP,
        error=error,
        prompt_tokens=20,
        completion_tokens=10,
        cost_usd=Decimal("0.00025"),
        duration_ms=duration_ms,
    )
