"""The bodies of requests to ``/v1/managed-agents``."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from spass.agents.ask import AgentChoice, ModelChoice, SystemPrompt, ToolNames
from spass.agents.visible_text import VisibleText
from spass.core.errors import InvalidRequest
from spass.core.json import dump_bytes
from spass.core.text_checks import reject_blank, reject_controls
from spass.managed.records import ManagedAgent, Schedule
from spass.tenancy.strict_body import StrictBody
from spass.tenancy.validation_messages import explain_error, field_path

MAX_CONFIG_BYTES: Final = 300 * 1024
"""Bytes of an agent's values together. An item of the table holds 400 KiB."""
_CHOICE: Final = ("agent", "model", "tools", "system_prompt", "params")
_OPERATOR_ID: Final = "operator_id"

_Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(reject_blank), AfterValidator(reject_controls)]


class ScheduleBody(StrictBody):
    """The times of scheduled runs. `input` is that of these runs, after the pending messages."""

    expression: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            description="`rate(…)`, `cron(…)` or `at(…)`, in the language of EventBridge Scheduler, such as `rate(1 hour)`.",
        ),
    ]
    timezone: Annotated[str, Field(min_length=1, max_length=50)] = "UTC"
    input: VisibleText | None = None
    enabled: bool = True

    def schedule(self) -> Schedule:
        """Return the schedule, whose expression and time zone are not checked yet."""
        return Schedule(self.expression, self.timezone, self.input, self.enabled)


class _Values(StrictBody):
    model: ModelChoice | None = None
    tools: ToolNames | None = None
    system_prompt: SystemPrompt | None = None
    params: Annotated[dict[str, Any] | None, Field(description="Parameters of the kind. `GET /v1/kinds` describes them.")] = None
    schedule: ScheduleBody | None = None


class CreateManagedAgent(_Values):
    """A new managed agent. The other values are those of a question to a kind (`POST /v1/ask`)."""

    name: _Name
    agent: Annotated[str, Field(min_length=1, max_length=128, description="The key of a kind, or the name of an agent.")]


class PatchManagedAgent(_Values):
    """Changes of a managed agent, for its next run. A missing value stays as it is, and null removes it."""

    name: _Name = ""
    paused: bool = False

    @property
    def changes(self) -> Mapping[str, Any]:
        """Return the values that the request has."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if self.schedule is not None:
            values["schedule"] = self.schedule.schedule()
        return values


class SendMessage(StrictBody):
    """A message to a managed agent. With `stream`, the agent runs at once, and the answer is the stream of the run."""

    content: VisibleText
    stream: bool = False


class RunManagedAgent(StrictBody):
    """A run. Its input is the pending messages and then `input`."""

    input: VisibleText | None = None


def choice_of(agent: ManagedAgent) -> AgentChoice:
    """Return what the agent's values choose.

    Raises:
        InvalidRequest: they do not fit the kind, or are too large, or name an operator.
    """
    if _OPERATOR_ID in (agent.params or {}):
        message = "A managed agent is an operator of its own. Omit params.operator_id: the operator has the id of the agent."
        raise InvalidRequest(message, param=f"params.{_OPERATOR_ID}")
    try:
        return AgentChoice.model_validate({name: getattr(agent, name) for name in _CHOICE})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        path = field_path(problem["loc"])
        message = explain_error(problem["type"], problem["msg"])
        raise InvalidRequest(f"{path}: {message}", param=path or None) from None


def check_size(agent: ManagedAgent) -> None:
    """Check that the agent's values fit in its item.

    Raises:
        InvalidRequest: they are too large.
    """
    schedule_input = agent.schedule.input if agent.schedule is not None else None
    size = len(dump_bytes([agent.name, agent.system_prompt, [*(agent.tools or ())], agent.params, schedule_input]))
    if size > MAX_CONFIG_BYTES:
        raise InvalidRequest(
            f"The values of a managed agent may have {MAX_CONFIG_BYTES} bytes together; these have {size}. Shorten "
            "system_prompt, params or schedule.input."
        )
