"""Run agents as models of chat completions: once over the client's messages, without a session."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spass.agents.kinds.base import AgentContext, ToolLoopAgent
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.calls.defence import is_blank
from spass.calls.scope import Scope
from spass.completions.answer import all_texts, last_text
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage, WireMessage, WireToolCall
from spass.core.effects import user
from spass.core.errors import AgentNotFound, InvalidRequest, ModelNotAllowed
from spass.core.events import Event
from spass.core.ids import AGENT_MODEL_PREFIX
from spass.core.messages import Message, Role
from spass.tenancy.config import model_not_found

if TYPE_CHECKING:
    from spass.agents.engine import Engine

_OF_THE_AGENT: Final = {
    "tools": "An agent calls its own tools",
    "tool_choice": "An agent chooses among its own tools",
    "response_format": "An agent answers with text",
    "stop": "An agent's answer has no stop sequences",
}


@dataclass(frozen=True, slots=True)
class AgentModels:
    """The agents as models. ``agents`` returns those of the files; ``make run`` replaces them."""

    engine: "Engine"
    agents: Callable[[], AgentRegistry]

    def events(self, scope: Scope, request: ChatCompletionRequest) -> AsyncGenerator[Event, None]:
        """Return the events of the agent's answer, which is one message. The agent's own sampling values apply.

        The iteration raises ``SpassError`` if the run fails.

        Raises:
            ModelNotFound: the agent does not exist.
            ModelNotAllowed: the token may not use the agent's model.
            InvalidRequest: the request has parameters or messages that an agent does not take.
        """
        agent = self._agent(scope, request.model)
        for name, reason in _OF_THE_AGENT.items():
            if getattr(request, name) not in (None, []):
                raise InvalidRequest(f"{reason}. Omit {name}, or send the request to a model that is not an agent.", param=name)
        conversation = _read_conversation(request.messages)
        events = self.engine.run(scope, agent, conversation.input, given=AgentContext(conversation.earlier))
        return all_texts(events) if _answers_at_once(agent) else last_text(events)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an agent of this name."""
        return name in self.agents()

    def _agent(self, scope: Scope, model: str) -> AgentSpec:
        try:
            agent = self.agents().get(model.removeprefix(AGENT_MODEL_PREFIX))
        except AgentNotFound:
            raise model_not_found(model) from None
        try:
            self.engine.check(scope, agent)
        except ModelNotAllowed as error:
            raise ModelNotAllowed(error.message, param="model") from None
        return agent


def _answers_at_once(agent: AgentSpec) -> bool:
    """Return whether the agent's first text is its answer, because it has neither tools to call nor code to run before."""
    kind = agent.build()
    return not kind.multi_turn or (isinstance(kind, ToolLoopAgent) and not agent.tools and kind.needs != "code")


@dataclass(frozen=True, slots=True)
class _Conversation:
    """``input`` is the text of the last message, and ``earlier`` are the messages before it."""

    earlier: tuple[Message, ...]
    input: str


def _read_conversation(messages: Sequence[WireMessage]) -> _Conversation:
    """Return the conversation of ``messages``, in which only the agent instructs: system messages are the user's words.

    The agent has tools of its own. So a result of another tool is text that is marked as data, and names its call. Raise
    InvalidRequest if the last message is not the user's or is blank, or a message has an image.
    """
    last = messages[-1]
    if not isinstance(last, UserMessage | SystemMessage):
        raise InvalidRequest(
            f"An agent answers the user: the last message must have the role 'user', not '{last.role}'.", param="messages"
        )
    *earlier, question = _read(messages)
    if is_blank(question.content):
        raise InvalidRequest("The last message is blank. Send the question to the agent there.", param="messages")
    kept = (message for message in earlier if not is_blank(message.content))
    return _Conversation(tuple(kept), question.content)


def _read(messages: Sequence[WireMessage]) -> Iterator[Message]:
    calls: dict[str, WireToolCall] = {}
    for message in messages:
        match message:
            case ToolMessage():
                called = calls[message.tool_call_id].function  # every result follows its call (``check_tool_answers``)
                yield user(f"Result of the call {called.name} {called.arguments}:\n{message.content}", data=True)
            case SystemMessage():
                yield user(message.content)
            case AssistantMessage():
                calls = {call.id: call for call in message.tool_calls or ()}
                yield Message(Role.ASSISTANT, message.content or message.refusal or "")
            case UserMessage():
                read = message.message()
                if read.parts:
                    raise InvalidRequest(
                        "Agents read text only. Remove the images from messages, or send them to a model that is not an agent.",
                        param="messages",
                    )
                yield user(read.content)
