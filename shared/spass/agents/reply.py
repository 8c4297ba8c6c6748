"""The reply to a turn: one form for a single chat and for a session's turn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.agents.answers import ExecutedCall, Reply, ReplyCompaction, ReplyMessage, ReplyUsage
from spass.agents.spec import AgentSpec
from spass.core.errors import SpassError
from spass.core.events import Outcome
from spass.core.ids import MessageId, RequestId, SessionId
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
) -> Reply:
    """Return ``outcome`` as a reply. Without ``recorded`` it is the reply of a single chat, which no session keeps."""
    usage, compacted = outcome.usage, recorded.compacted if recorded else None
    return Reply(
        request_id=request_id,
        agent=agent.name,
        model=agent.model,
        session_id=recorded.session_id if recorded else None,
        message=ReplyMessage(
            id=recorded.message_id if recorded else None,
            seq=recorded.seq if recorded else None,
            content=outcome.content,
            created_at=created_at,
        ),
        tool_calls=[ExecutedCall.model_validate(call, from_attributes=True) for call in outcome.tool_calls],
        usage=ReplyUsage.model_validate(usage, from_attributes=True),
        turns=outcome.turns,
        finish_reason=outcome.finish_reason,
        compaction=_compaction(compacted) if compacted else None,
    )


def compaction_headers(compacted: "CompactionResult | None", error: SpassError | None) -> dict[str, str]:
    """What a turn's answer says of a compaction that it began with, or should have."""
    if compacted is not None:
        return {"SPASS-Compacted-From": compacted.summary.source, "SPASS-Session-Id": compacted.summary.successor}
    return {"SPASS-Compaction-Error": error.code} if error is not None else {}


def _compaction(compacted: "CompactionResult") -> ReplyCompaction:
    summary = compacted.summary
    return ReplyCompaction(source_session_id=summary.source, successor_session_id=summary.successor, summary_id=summary.id)
