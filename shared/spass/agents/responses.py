"""The responses about agents, and an agent's reply."""

from typing import Annotated, Literal

from pydantic import ConfigDict, WithJsonSchema

from spass.agents.parameters import parameters_of
from spass.agents.spec import GRANTS, AgentSpec
from spass.core.ids import MessageId, RequestId
from spass.core.messages import FinishReason, Json
from spass.core.run_result import RunResult, ToolRecord
from spass.models.responses import TurnUsage
from spass.tenancy.response_model import (
    Count,
    DateTime,
    JsonObject,
    JsonValue,
    NextCursor,
    ResponseModel,
    SessionIdText,
    SummaryIdText,
)
from spass.tools.grants import EditorSettings, PathPatterns


class AgentSummary(ResponseModel):
    """The main properties of an agent. If it is not `usable` for this token, `unusable_reason` says why."""

    name: str
    kind: str
    model: str
    description: str
    tools: tuple[str, ...]
    rag_index: str | None
    usable: bool = True
    unusable_reason: str | None = None

    @classmethod
    def of(cls, agent: AgentSpec, unusable_reason: str | None = None) -> "AgentSummary":
        summary = cls.model_validate(agent, from_attributes=True)
        usable = unusable_reason is None
        return summary.model_copy(update={"usable": usable, "unusable_reason": unusable_reason})


class AgentConfig(AgentSummary):
    """An agent with all values of its file and the defaults of the others. The parameters of its kind are further fields;
    `GET /v1/kinds` describes them. `stand_in` is true if the laptop's offline stand-in answers in place of the model."""

    model_config = ConfigDict(extra="allow")

    rag_top_k: Count
    workspace: str | None
    paths: PathPatterns
    approval: tuple[str, ...]
    delegates: tuple[str, ...]
    editor: EditorSettings
    system_prompt: str
    temperature: float
    max_tokens: Count
    stand_in: bool

    @classmethod
    def with_defaults(
        cls, agent: AgentSpec, rag_top_k: int, unusable_reason: str | None = None, *, stand_in: bool = False
    ) -> "AgentConfig":
        """Return the agent. ``rag_top_k`` is the tenant's, which applies if the file has none."""
        common = AgentSummary.of(agent, unusable_reason).model_dump()
        grants = {name: getattr(agent.grants, name) for name in GRANTS}
        top_k = agent.rag_top_k or rag_top_k
        return cls.model_validate({**common, "rag_top_k": top_k, "stand_in": stand_in, **grants, **parameters_of(agent.build())})


class AgentPage(ResponseModel):
    """A page of the list of agents."""

    agents: list[AgentSummary]
    next_cursor: NextCursor


class ReplyMessage(ResponseModel):
    """The agent's answer. `id` and `seq` are null if no session stores it."""

    id: MessageId | None
    seq: Count | None
    role: Literal["assistant"] = "assistant"
    content: str
    created_at: DateTime


class ExecutedCall(ResponseModel):
    """A tool call of the turn, and its result."""

    name: str
    arguments: JsonValue
    result: JsonValue
    duration_ms: Count

    @classmethod
    def of(cls, tool: ToolRecord) -> "ExecutedCall":
        return cls(name=tool.name, arguments=tool.arguments, result=tool.result, duration_ms=tool.duration_ms)


class ReplyCompaction(ResponseModel):
    """The compaction before the turn."""

    source_session_id: SessionIdText
    successor_session_id: SessionIdText
    summary_id: SummaryIdText


_FinishReason = Annotated[
    FinishReason,
    WithJsonSchema({"type": "string", "enum": ["stop", "length", "max_turns", "content_filter", "cancelled", "deadline"]}),
]


class Reply(ResponseModel):
    """An agent's reply. `turns` counts the agent's own model calls."""

    request_id: RequestId
    agent: str
    model: str
    session_id: SessionIdText | None
    message: ReplyMessage
    tool_calls: list[ExecutedCall]
    usage: TurnUsage
    turns: Count
    finish_reason: _FinishReason
    compaction: ReplyCompaction | None
    metadata: JsonObject

    @classmethod
    def of(cls, outcome: RunResult) -> "Reply":
        compaction = outcome.compaction
        return cls(
            request_id=outcome.run.request_id,
            agent=outcome.run.agent,
            model=outcome.run.model,
            session_id=outcome.session_id,
            message=ReplyMessage(id=outcome.message_id, seq=outcome.seq, content=outcome.content, created_at=outcome.created_at),
            tool_calls=[ExecutedCall.of(tool) for tool in outcome.tools],
            usage=TurnUsage.model_validate(outcome.usage, from_attributes=True),
            turns=outcome.turns,
            finish_reason=outcome.finish_reason,
            compaction=ReplyCompaction(
                source_session_id=compaction.source,
                successor_session_id=compaction.successor,
                summary_id=compaction.summary,
            )
            if compaction is not None
            else None,
            metadata=dict(outcome.metadata),
        )


class AskToolResult(ResponseModel):
    """A tool call. `content` is the whole text of its result."""

    tool_name: str
    content: str
    success: bool
    duration_ms: Count

    @classmethod
    def of(cls, tool: ToolRecord) -> "AskToolResult":
        return cls(tool_name=tool.name, content=tool.content, success=tool.ok, duration_ms=tool.duration_ms)


def ask_metadata(outcome: RunResult) -> dict[str, Json]:
    """Return the metadata of an answer to a question. It names the session, which only the run of an operator has."""
    session = {"session_id": outcome.session_id} if outcome.session_id is not None else {}
    return {**outcome.metadata, **session}


class AskAnswer(ResponseModel):
    """The answer to a question. `agent` is the name of an agent's file, or the same as `kind`. `turns` counts the agent's own
    model calls. `metadata` contains that of the question's context, and the `session_id` of an operator's run."""

    request_id: RequestId
    agent: str
    kind: str
    model: str
    content: str
    tool_results: list[AskToolResult]
    turns: Count
    finish_reason: _FinishReason
    usage: TurnUsage
    metadata: JsonObject

    @classmethod
    def of(cls, outcome: RunResult) -> "AskAnswer":
        return cls(
            request_id=outcome.run.request_id,
            agent=outcome.run.agent,
            kind=outcome.run.kind,
            model=outcome.run.model,
            content=outcome.content,
            tool_results=[AskToolResult.of(tool) for tool in outcome.tools],
            turns=outcome.turns,
            finish_reason=outcome.finish_reason,
            usage=TurnUsage.model_validate(outcome.usage, from_attributes=True),
            metadata=ask_metadata(outcome),
        )
