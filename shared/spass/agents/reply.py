"""Render the reply to a single chat or to a turn of a session."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.agents.answers import ExecutedCall, Reply, ReplyCompaction, ReplyMessage, ReplyUsage
from spass.agents.spec import AgentSpec
from spass.core.errors import SpassError
from spass.core.events import Outcome
from spass.core.ids import MessageId, RequestId, SessionId
from spass.core.time import Timestamp

if TYPE_CHECKING:
    from spass.sessions.compaction.commit import CompactionResult


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """The place of the answer in a session. If the turn compacted the requested session, this session is the successor and
    ``compaction`` the result."""

    session_id: SessionId
    message_id: MessageId
    seq: int
    compaction: "CompactionResult | None" = None


def render_reply(
    request_id: RequestId, agent: AgentSpec, outcome: Outcome, created_at: Timestamp, location: MessageLocation | None = None
) -> Reply:
    """Return ``outcome`` as a reply. Without a ``location`` it is the reply of a single chat."""
    usage, compaction = outcome.usage, location.compaction if location else None
    return Reply(
        request_id=request_id,
        agent=agent.name,
        model=agent.model,
        session_id=location.session_id if location else None,
        message=ReplyMessage(
            id=location.message_id if location else None,
            seq=location.seq if location else None,
            content=outcome.content,
            created_at=created_at,
        ),
        tool_calls=[ExecutedCall.model_validate(call, from_attributes=True) for call in outcome.tool_calls],
        usage=ReplyUsage.model_validate(usage, from_attributes=True),
        turns=outcome.turns,
        finish_reason=outcome.finish_reason,
        compaction=_compaction(compaction) if compaction else None,
    )


def compaction_headers(compaction: "CompactionResult | None", error: SpassError | None) -> dict[str, str]:
    """Return the headers that report a turn's compaction or its failure."""
    if compaction is not None:
        return {"SPASS-Compacted-From": compaction.summary.source, "SPASS-Session-Id": compaction.summary.successor}
    return {"SPASS-Compaction-Error": error.code} if error is not None else {}


def _compaction(compaction: "CompactionResult") -> ReplyCompaction:
    summary = compaction.summary
    return ReplyCompaction(source_session_id=summary.source, successor_session_id=summary.successor, summary_id=summary.id)
