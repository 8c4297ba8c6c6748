"""The result of an agent's run, as an idempotency record holds it. The edge renders it as JSON, as headers or as a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from spass.core.codec import AsList, WrongValue, broken_record, decode_record, encode_record
from spass.core.cost import NO_COST, Cost
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
class RunResult:
    """The result of a run that succeeded. ``cost`` is the cost of the whole request.

    ``session_id``, ``message_id`` and ``seq`` are the place of the answer, or None if no session stores it.
    ``compaction_error`` is the code of the error of a compaction that failed before or during the turn.
    """

    run: Annotated[AgentRun, AsList()]
    content: str
    created_at: Timestamp
    tools: tuple[Annotated[ToolRecord, AsList(optional=2)], ...] = ()
    usage: Annotated[TokenUsage, AsList()] = field(default_factory=TokenUsage)
    cost: Annotated[Cost, AsList()] = NO_COST
    turns: int = 1
    finish_reason: FinishReason = FinishReason.STOP
    metadata: Mapping[str, Json] = field(default_factory=dict)
    session_id: SessionId | None = None
    message_id: MessageId | None = None
    seq: int | None = None
    compaction: Annotated[CompactionIds | None, AsList()] = None
    compaction_error: str | None = None

    @classmethod
    def of(cls, run: AgentRun, collected: Outcome, cost: Cost, created_at: Timestamp) -> "RunResult":
        """Return the result of a run without a session, whose events were ``collected``."""
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


def encode_run_result(result: RunResult) -> dict[str, Json]:
    """Return ``result`` as JSON, for ``decode_run_result``."""
    return {_KEY: encode_record(result, keep_none=True)}


def decode_run_result(body: Mapping[str, Any]) -> RunResult:
    """Return the result in the ``body`` of an idempotency record."""
    try:
        return decode_record(RunResult, body[_KEY])
    except WrongValue as error:
        broken = broken_record("outcome", error)
        raise broken from broken.__cause__
