"""The body of a question to any kind or agent, and the agent that answers it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.registry import KINDS
from spass.agents.parameters import SYSTEM_PROMPT, params_model
from spass.agents.registry import AgentRegistry
from spass.agents.spec import DEFAULT_KIND, MAX_MESSAGE_BYTES, AgentSpec, MessageText, check_unique
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.errors import AgentNotFound, InvalidRequest, ModelNotAllowed, ToolNotFound
from spass.core.ids import AGENT_NAME
from spass.core.json import dump
from spass.core.messages import Message, Role
from spass.core.text_checks import did_you_mean, end_sentence, limit_bytes, reject_blank
from spass.models.backends import is_served
from spass.tenancy.config import GatewayConfig
from spass.tenancy.strict_body import StrictBody
from spass.tools.toolbox import Toolbox

_MAX_METADATA_BYTES: Final = 4 * 1024
_NAME: Final = re.compile(AGENT_NAME)
_OF_KINDS_ONLY: Final = ("model", "tools", "system_prompt", "params")


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    limit_bytes(_MAX_METADATA_BYTES)(dump(metadata))
    return metadata


_Text = Annotated[
    str,
    AfterValidator(limit_bytes(MAX_MESSAGE_BYTES)),
    WithJsonSchema(
        {"type": "string", "maxLength": MAX_MESSAGE_BYTES, "description": f"At most {MAX_MESSAGE_BYTES} bytes of UTF-8."}
    ),
]
_MemoryResult = Annotated[Any, WithJsonSchema({"description": "A text, or any JSON value."})]
_Metadata = Annotated[
    dict[str, Any],
    AfterValidator(_check_metadata),
    WithJsonSchema({"type": "object", "description": f"At most {_MAX_METADATA_BYTES} bytes of JSON."}),
]


class AskMessage(StrictBody):
    """A message before the input."""

    role: Literal["user", "assistant"]
    content: _Text

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.role == "user":
            reject_blank(self.content)
        return self


class AskContext(StrictBody):
    """What the agent knows besides the input. `metadata` is returned in the answer."""

    conversation: Annotated[tuple[AskMessage, ...], Field(strict=False)] = ()
    memory_results: Annotated[tuple[_MemoryResult, ...], Field(strict=False)] = ()
    metadata: _Metadata = Field(default={})

    @property
    def given(self) -> AgentContext:
        """Return what the question adds to the agent's context."""
        conversation = tuple(Message(Role(message.role), message.content) for message in self.conversation)
        return AgentContext(conversation, memory_results=self.memory_results, metadata=self.metadata)


def _read_context(value: object) -> object:
    return {"memory_results": [value]} if isinstance(value, str) else {} if value is None else value


ModelChoice = Annotated[str, Field(min_length=1, max_length=128)]
ToolNames = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=64)], ...], Field(strict=False), AfterValidator(check_unique)
]
SystemPrompt = _Text


class AgentChoice(StrictBody):
    """A kind with its values, or the agent of a file. Only a kind takes `model`, `tools`, `system_prompt` and `params`."""

    agent: Annotated[str, Field(description="The key of a kind, or the name of an agent.")] = DEFAULT_KIND
    model: Annotated[
        ModelChoice | None, Field(description="A chat model. The default is the first one that the token may use.")
    ] = None
    tools: ToolNames | None = None
    system_prompt: SystemPrompt | None = None
    params: Annotated[
        dict[str, Any] | None, Field(validate_default=True, description="Parameters of the kind. `GET /v1/kinds` describes them.")
    ] = None

    # ``info.data`` has the fields that are declared above the validated field and are valid.

    @field_validator("params")
    @classmethod
    def _check_params(cls, params: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        key = info.data.get("agent", "")
        if not KINDS.contains(key):
            return params
        checked = params_model(KINDS.get(key)).model_validate(params or {})
        return {name: getattr(checked, name) for name in checked.model_fields_set}


class AskBody(AgentChoice):
    """A question to a kind, or to the agent of a file."""

    input: MessageText
    context: Annotated[
        AskContext,
        BeforeValidator(_read_context, json_schema_input_type=AskContext | str | None),
        Field(description="A text is one memory result."),
    ] = AskContext()
    stream: Annotated[bool, Field(description="Answer with a stream of events.")] = False


@dataclass(frozen=True, slots=True)
class Asker:
    """Find the agent that answers a question. ``agents`` returns the agents of the files; ``make run`` replaces them."""

    agents: Callable[[], AgentRegistry]
    config: GatewayConfig
    calls: Calls
    toolbox: Toolbox

    def agent(self, scope: Scope, choice: AgentChoice) -> AgentSpec:
        """Return the agent that is chosen: one of a kind, or that of a file. Nothing is called.

        Raises:
            AgentNotFound, ModelNotFound, ToolNotFound: a name is unknown.
            ModelNotAllowed: the token may not use the model, or no chat model.
            InvalidRequest: the values do not fit the agent.
        """
        if KINDS.contains(choice.agent):
            return self._of_kind(scope, choice)
        agent = self._of_file(choice.agent)
        for name in _OF_KINDS_ONLY:
            if getattr(choice, name) is not None:
                message = f"The file of the agent '{agent.name}' sets this already. Omit {name}, or ask a kind (GET /v1/kinds)."
                raise InvalidRequest(message, param=name)
        return agent

    def _of_file(self, name: str) -> AgentSpec:
        try:
            return self.agents().get(name)
        except AgentNotFound:
            missing = "There is no agent or kind of this name."
            if _NAME.fullmatch(name):  # another text may be a secret, of which a shortened copy is not recognized
                known = [*KINDS.keys(), *(agent.name for agent in self.agents().list().agents)]
                missing = end_sentence(f"There is no agent or kind '{name}'{did_you_mean(name, known)}")
            message = f"{missing} GET /v1/kinds lists all kinds, GET /a1/agents all agents."
            raise AgentNotFound(message, param="agent") from None

    def _of_kind(self, scope: Scope, choice: AgentChoice) -> AgentSpec:
        key = KINDS.canonical(choice.agent)
        parameters: Mapping[str, Any] = choice.params or {}
        if choice.system_prompt is not None:
            parameters = {**parameters, SYSTEM_PROMPT: choice.system_prompt}
        agent = AgentSpec(
            name=key,
            kind=key,
            model=self._model(scope, choice.model),
            tools=self._tools(scope, choice),
            parameters=parameters,
        )
        try:
            agent.build()
        except ValueError as error:  # of a kind that checks its values together
            raise InvalidRequest(f"params: {error}", param="params") from None
        return agent

    def _model(self, scope: Scope, name: str | None) -> str:
        if name is not None:
            return self.calls.chat_model(scope, name).name
        allowed = [model.name for model in scope.caller.identity.chat_models(self.config)]
        if not allowed:
            raise ModelNotAllowed("This token may not use any chat model of the catalogue.", param="model")
        return next((name for name in allowed if is_served(self.config.llm, name)), allowed[0])

    def _tools(self, scope: Scope, choice: AgentChoice) -> tuple[str, ...]:
        tools = choice.tools or ()
        try:
            self.toolbox.specs(scope, tools)
        except ToolNotFound as error:
            raise ToolNotFound(error.message, param="tools") from None
        return tools
