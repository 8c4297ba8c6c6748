"""Kinds that hand the whole turn to a foreign agent."""

from abc import abstractmethod
from dataclasses import InitVar, dataclass
from typing import Final

from spass.agents.kinds.base import AgentContext, BaseAgent, parameter
from spass.core.effects import Answer, ForeignResult, ForeignRun, ForeignRunner, RunForeign, Steps
from spass.core.json import dump
from spass.core.messages import Message, Role

MAX_TIMEOUT: Final = 24 * 3600
_MAX_RESULT_CHARACTERS: Final = 500
"""Characters of the result of an earlier call that a prompt repeats."""


@dataclass(frozen=True, kw_only=True)
class ForeignAgent(BaseAgent):
    """A foreign agent. One run of it is the whole turn, and its model calls are its own.

    ``api_key`` is for Python alone: it is not a parameter, so no file and no request can contain one.
    """

    workspace: str = parameter("", "Required: the folder of the gateway's machine in which the agent works, as an absolute path.")
    timeout: int = parameter(1800, "Seconds that the agent may work.", ge=1, le=MAX_TIMEOUT)
    api_key: InitVar[str] = ""

    def __post_init__(self, api_key: str) -> None:
        object.__setattr__(self, "api_key", api_key)  # ``dataclasses.replace`` reads it from here

    def steps(self, input: str, context: AgentContext) -> Steps:
        result: ForeignResult = yield RunForeign(self.foreign_run(input, context))
        return Answer(result.content, metadata=result.metadata, model=result.model)

    @abstractmethod
    def foreign_run(self, input: str, context: AgentContext) -> ForeignRun:
        """Return the run that answers ``input``."""

    def run_of(self, runner: ForeignRunner, input: str, context: AgentContext) -> ForeignRun:
        """Return the run of ``runner`` with the parameters that all foreign agents have."""
        return ForeignRun(
            runner=runner,
            prompt=prompt_text(input, context),
            system_prompt=self.system_prompt,
            workspace=self.workspace,
            timeout=self.timeout,
            api_key=str(self.__dict__.get("api_key", "")),
        )


def prompt_text(input: str, context: AgentContext) -> str:
    """Return the one text that a foreign agent receives: the conversation and the data, if there are any, and the input."""
    conversation = "\n\n".join(_message_text(message) for message in context.conversation)
    data = "\n\n".join(result if isinstance(result, str) else dump(result) for result in context.memory_results)
    parts = [f"<{name}>\n{text}\n</{name}>" for name, text in (("conversation", conversation), ("data", data)) if text]
    return "\n\n".join([*parts, input])


def _message_text(message: Message) -> str:
    calls = [f"[{call.name} {call.arguments}]" for call in message.tool_calls]
    if message.role is Role.TOOL:
        return f"result: {message.content[:_MAX_RESULT_CHARACTERS]}"
    return f"{message.role.value}: " + "\n".join([*filter(None, [message.content]), *calls])
