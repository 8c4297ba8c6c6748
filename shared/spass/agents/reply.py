"""The answer of a turn on the wire: one form for a single chat and for a session's turn."""

from collections.abc import Mapping
from dataclasses import dataclass

from spass.agents.spec import AgentSpec
from spass.core.events import Outcome
from spass.core.ids import MessageId, RequestId, SessionId
from spass.core.messages import Json, Role
from spass.core.time import Timestamp


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where a session keeps the answer. ``compaction`` is what the turn compacted before it ran, if it did."""

    session_id: SessionId
    message_id: MessageId
    seq: int
    compaction: Mapping[str, Json] | None = None


def render_reply(
    request_id: RequestId, agent: AgentSpec, outcome: Outcome, created_at: Timestamp, recorded: Recorded | None = None
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
        "compaction": recorded.compaction if recorded else None,
    }
