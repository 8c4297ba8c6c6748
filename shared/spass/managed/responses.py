"""The answers of ``/v1/managed-agents``."""

from typing import Annotated

from pydantic import WithJsonSchema

from spass.core.ids import ManagedAgentId, MessageId, RunId, id_pattern
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
        return cls.model_validate(agent, from_attributes=True)


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
        return cls.model_validate(run, from_attributes=True)


class RunPage(ResponseModel):
    """A page of an agent's runs, newest first."""

    runs: list[RunView]
    next_cursor: NextCursor
