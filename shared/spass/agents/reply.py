"""The answer of a turn on the wire: one form for a single chat and for a session's turn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.agents.spec import AgentSpec
from spass.core.errors import SpassError
from spass.core.events import Outcome
from spass.core.ids import MessageId, RequestId, SessionId
from spass.core.messages import Json, Role
from spass.core.time import Timestamp

if TYPE_CHECKING:
    from spass.sessions.compaction.types import CompactionResult


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """Where a session keeps the answer. ``compacted``: the turn compacted the session that was asked, and this one is its
    successor."""

    session_id: SessionId
    message_id: MessageId
    seq: int
    compacted: "CompactionResult | None" = None


def render_reply(
    request_id: RequestId, agent: AgentSpec, outcome: Outcome, created_at: Timestamp, recorded: MessageLocation | None = None
) -> dict[str, Json]:
    """``outcome`` as the reply's JSON; without ``recorded`` it is a single chat's, which is kept nowhere."""
    return {
        "request_id": request_id,
        "agent": agent.name,
        "model": agent.model,
        "session_id": recorded.session_id if recorded else None,
        "message": {
            "id": recorded.message_id if recorded else None,
            "seq": recorded.seq if recorded else None,
            "role": Role.ASSISTANT.value,
            "content": outcome.content,
            "created_at": created_at,
        },
        "tool_calls": [
            {"name": call.name, "arguments": call.arguments, "result": call.result, "duration_ms": call.duration_ms}
            for call in outcome.tool_calls
        ],
        "usage": {
            "prompt_tokens": outcome.usage.prompt_tokens,
            "completion_tokens": outcome.usage.completion_tokens,
            "total_tokens": outcome.usage.total_tokens,
        },
        "turns": outcome.turns,
        "finish_reason": outcome.finish_reason.value,
        "compaction": _compaction(recorded.compacted) if recorded and recorded.compacted else None,
    }


def compaction_headers(compacted: "CompactionResult | None", error: SpassError | None) -> dict[str, str]:
    """What a turn's answer says of a compaction that it began with, or should have."""
    if compacted is not None:
        return {"SPASS-Compacted-From": compacted.summary.source, "SPASS-Session-Id": compacted.summary.successor}
    return {"SPASS-Compaction-Error": error.code} if error is not None else {}


def _compaction(compacted: "CompactionResult") -> dict[str, Json]:
    made = compacted.summary
    return {"source_session_id": made.source, "successor_session_id": made.successor, "summary_id": made.id}
