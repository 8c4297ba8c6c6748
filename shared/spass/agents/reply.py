"""Render the reply to a single chat or to a turn of a session."""

from typing import TYPE_CHECKING

from spass.agents.answers import ExecutedCall, Reply, ReplyCompaction, ReplyMessage, ReplyUsage
from spass.agents.spec import AgentSpec
from spass.core.errors import SpassError
from spass.core.events import Outcome
from spass.core.ids import RequestId
from spass.core.time import Timestamp

if TYPE_CHECKING:
    from spass.sessions.compaction.commit import CompactionResult
    from spass.sessions.compaction.summary_record import SummaryRecord
    from spass.sessions.turn import CommittedTurn


def render_reply(
    request_id: RequestId,
    agent: AgentSpec,
    outcome: Outcome,
    created_at: Timestamp,
    committed: "CommittedTurn | None" = None,
) -> Reply:
    """Return ``outcome`` as a reply. Without a ``committed`` turn it is the reply of a single chat."""
    summary = committed.compaction.summary if committed and committed.compaction else None
    return Reply(
        request_id=request_id,
        agent=agent.name,
        model=agent.model,
        session_id=committed.session.id if committed else None,
        message=ReplyMessage(
            id=committed.turn.answer.id if committed else None,
            seq=committed.turn.answer.seq if committed else None,
            content=outcome.content,
            created_at=created_at,
        ),
        tool_calls=[ExecutedCall.of(tool) for tool in outcome.tool_calls],
        usage=ReplyUsage.model_validate(outcome.usage, from_attributes=True),
        turns=outcome.turns,
        finish_reason=outcome.finish_reason,
        compaction=_compaction(summary) if summary else None,
    )


def _compaction(summary: "SummaryRecord") -> ReplyCompaction:
    return ReplyCompaction(
        source_session_id=summary.source,
        successor_session_id=summary.successor,
        summary_id=summary.id,
    )


def compaction_headers(compaction: "CompactionResult | None", error: SpassError | None) -> dict[str, str]:
    """Return the headers that report a turn's compaction or its failure."""
    if compaction is not None:
        summary = compaction.summary
        return {"SPASS-Compacted-From": summary.source, "SPASS-Session-Id": summary.successor}
    return {"SPASS-Compaction-Error": error.code} if error is not None else {}
