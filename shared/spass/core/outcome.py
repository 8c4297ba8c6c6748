"""The outcome of an agent's run, as an idempotency record holds it. The edge renders it as JSON, as headers or as a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from spass.core.cost import NO_COST, Cost, CostSource, decimal_text
from spass.core.effects import ToolOutcome
from spass.core.events import Outcome
from spass.core.ids import MessageId, RequestId, SessionId, SummaryId
from spass.core.json import dump
from spass.core.messages import FinishReason, Json, TokenUsage
from spass.core.time import Timestamp

_KEY: Final = "outcome"


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """A tool call that was executed. ``result`` is the whole result, as parsed JSON. ``rich`` and ``approval`` are those
    of ``ToolOutcome``."""

    id: str
    name: str
    arguments: Json
    result: Json
    ok: bool
    duration_ms: int
    rich: tuple[Json, ...] = ()
    approval: Mapping[str, Json] | None = None

    @classmethod
    def of(cls, tool: ToolOutcome) -> "ToolRecord":
        return cls(tool.call.id, tool.call.name, tool.arguments, tool.result, tool.ok, tool.duration_ms, tool.rich, tool.approval)

    @property
    def content(self) -> str:
        """Return the whole result as text."""
        return dump(self.result)


@dataclass(frozen=True, slots=True)
class CompactionIds:
    """The compaction that moved a turn from the session ``source`` to its ``successor``."""

    source: SessionId
    successor: SessionId
    summary: SummaryId


@dataclass(frozen=True, slots=True)
class AgentRun:
    """The request that runs an agent, and the ``kind`` and the ``model`` of the ``agent``. A foreign agent may have selected the
    model."""

    request_id: RequestId
    agent: str
    kind: str
    model: str


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """The outcome of a run that succeeded. ``cost`` is that of the whole request.

    ``session_id``, ``message_id`` and ``seq`` are the place of the answer, or None if no session stores it.
    ``compaction_error`` is the code of the error of a compaction that failed before or during the turn.
    """

    run: AgentRun
    content: str
    created_at: Timestamp
    tools: tuple[ToolRecord, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: Cost = NO_COST
    turns: int = 1
    finish_reason: FinishReason = FinishReason.STOP
    metadata: Mapping[str, Json] = field(default_factory=dict)
    session_id: SessionId | None = None
    message_id: MessageId | None = None
    seq: int | None = None
    compaction: CompactionIds | None = None
    compaction_error: str | None = None

    @classmethod
    def of(cls, run: AgentRun, collected: Outcome, cost: Cost, created_at: Timestamp) -> "TurnOutcome":
        """Return the outcome of a run without a session, whose events were ``collected``."""
        return cls(
            replace(run, model=collected.model or run.model),
            collected.content,
            created_at,
            tuple(map(ToolRecord.of, collected.tool_calls)),
            collected.usage,
            cost,
            collected.turns,
            collected.finish_reason,
            collected.metadata,
        )


def encode_outcome(outcome: TurnOutcome) -> dict[str, Json]:
    """Return ``outcome`` as JSON, for ``decode_outcome``."""
    run, cost, compaction = outcome.run, outcome.cost, outcome.compaction
    return {
        _KEY: {
            "run": [run.request_id, run.agent, run.kind, run.model],
            "content": outcome.content,
            "created_at": outcome.created_at,
            "tools": [*map(_encode_tool, outcome.tools)],
            "usage": [outcome.usage.prompt_tokens, outcome.usage.completion_tokens],
            "cost": [decimal_text(cost.usd), decimal_text(cost.eur), cost.source.value, cost.sub_calls],
            "turns": outcome.turns,
            "finish_reason": outcome.finish_reason.value,
            "metadata": outcome.metadata,
            "session_id": outcome.session_id,
            "message_id": outcome.message_id,
            "seq": outcome.seq,
            "compaction": [compaction.source, compaction.successor, compaction.summary] if compaction else None,
            "compaction_error": outcome.compaction_error,
        }
    }


def decode_outcome(body: Mapping[str, Any]) -> TurnOutcome:
    """Return the outcome in the ``body`` of an idempotency record."""
    stored: Mapping[str, Any] = body[_KEY]
    usd, eur, source, sub_calls = stored["cost"]
    return TurnOutcome(
        run=AgentRun(*stored["run"]),
        content=stored["content"],
        created_at=stored["created_at"],
        tools=tuple(_decode_tool(*tool) for tool in stored["tools"]),
        usage=TokenUsage(*stored["usage"]),
        cost=Cost(Decimal(usd), Decimal(eur), CostSource(source), sub_calls),
        turns=stored["turns"],
        finish_reason=FinishReason(stored["finish_reason"]),
        metadata=stored["metadata"],
        session_id=stored["session_id"],
        message_id=stored["message_id"],
        seq=stored["seq"],
        compaction=CompactionIds(*stored["compaction"]) if stored["compaction"] else None,
        compaction_error=stored["compaction_error"],
    )


def _encode_tool(tool: ToolRecord) -> list[Json]:
    """Return the call as it is stored. Most calls have neither of the last two."""
    stored: list[Json] = [tool.id, tool.name, tool.arguments, tool.result, tool.ok, tool.duration_ms]
    return [*stored, [*tool.rich], tool.approval] if tool.rich or tool.approval else stored


def _decode_tool(
    call_id: str,
    name: str,
    arguments: Json,
    result: Json,
    ok: bool,
    duration_ms: int,
    rich: Sequence[Json] = (),
    approval: Mapping[str, Json] | None = None,
) -> ToolRecord:
    return ToolRecord(call_id, name, arguments, result, ok, duration_ms, tuple(rich), approval)
