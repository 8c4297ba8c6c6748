"""The answers of ``/v1/managed-agents``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import WithJsonSchema

from spass.core.ids import ManagedAgentId, MessageId, RunId, id_pattern
from spass.core.messages import Json
from spass.managed.records import AgentStatus, Direction, MailboxMessage, ManagedAgent, MessageStatus, Run, RunStatus, RunTrigger
from spass.models.responses import TurnUsage
from spass.tenancy.response_model import Count, DateTime, DecimalText, JsonObject, ModelName, NextCursor, ResponseModel

ManagedAgentIdText = Annotated[ManagedAgentId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('agt')}$"})]
RunIdText = Annotated[RunId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('run')}$"})]


class ScheduleView(ResponseModel):
    """The times of scheduled runs. `input` is that of these runs."""

    expression: str
    timezone: str
    input: str | None
    enabled: bool


class RunError(ResponseModel):
    """Why a run failed."""

    code: str
    message: str

    @classmethod
    def of(cls, error: Mapping[str, Json] | None) -> "RunError | None":
        return cls(code=str(error["code"]), message=str(error["message"])) if error is not None else None


class ManagedAgentView(ResponseModel):
    """A managed agent. `agent` is a kind, or the name of an agent's file. `error` is that of the last run, if it failed."""

    id: ManagedAgentIdText
    name: str
    agent: str
    model: ModelName | None
    tools: list[str] | None
    system_prompt: str | None
    params: JsonObject | None
    schedule: ScheduleView | None
    status: AgentStatus
    error: RunError | None
    created_at: DateTime
    updated_at: DateTime

    @classmethod
    def of(cls, agent: ManagedAgent) -> "ManagedAgentView":
        same: dict[str, Any] = {
            name: getattr(agent, name) for name in ("id", "name", "agent", "model", "system_prompt", "status")
        }
        schedule = agent.schedule
        return cls(
            **same,
            tools=[*agent.tools] if agent.tools is not None else None,
            params=dict(agent.params) if agent.params is not None else None,
            schedule=ScheduleView.model_validate(schedule, from_attributes=True) if schedule is not None else None,
            error=RunError.of(agent.error),
            created_at=agent.created_at,
            updated_at=agent.updated_at,
        )


class ManagedAgentPage(ResponseModel):
    """A page of the owner's managed agents, newest first."""

    agents: list[ManagedAgentView]
    next_cursor: NextCursor


class MessageView(ResponseModel):
    """A message of a mailbox. `run_id` is the run that read it, or whose answer it is."""

    id: MessageId
    seq: Count
    direction: Direction
    content: str
    status: MessageStatus
    run_id: RunIdText | None
    created_at: DateTime

    @classmethod
    def of(cls, message: MailboxMessage) -> "MessageView":
        return cls.model_validate(message, from_attributes=True)


class MessagePage(ResponseModel):
    """A page of a mailbox, oldest first."""

    messages: list[MessageView]
    next_cursor: NextCursor


class RunView(ResponseModel):
    """A run. `scheduled_for` is the time of a tick. `usage` and `cost_usd` are null if nothing was recorded."""

    id: RunIdText
    status: RunStatus
    trigger: RunTrigger
    scheduled_for: DateTime | None
    turns: Count
    usage: TurnUsage | None
    cost_usd: DecimalText | None
    error: RunError | None
    created_at: DateTime
    finished_at: DateTime | None

    @classmethod
    def of(cls, run: Run) -> "RunView":
        return cls(
            id=run.id,
            status=run.status,
            trigger=run.trigger,
            scheduled_for=run.scheduled_for,
            turns=run.turns,
            usage=TurnUsage.model_validate(run.usage, from_attributes=True) if run.usage is not None else None,
            cost_usd=run.cost_usd,
            error=RunError.of(run.error),
            created_at=run.created_at,
            finished_at=run.finished_at,
        )


class RunPage(ResponseModel):
    """A page of an agent's runs, newest first."""

    runs: list[RunView]
    next_cursor: NextCursor
