"""Run agents as models of chat completions: once over the client's messages, without a session."""

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

from spass.agents.kinds.base import AgentContext, ToolLoopAgent
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.conversation import read_conversation
from spass.completions.one_answer import all_texts, last_text
from spass.core.errors import AgentNotFound, InvalidRequest, ModelNotAllowed
from spass.core.events import Event
from spass.core.ids import AGENT_MODEL_PREFIX
from spass.tenancy.config import model_not_found

if TYPE_CHECKING:
    from spass.agents.engine import Engine

_OF_THE_AGENT: Final = {
    "tools": "An agent calls its own tools",
    "tool_choice": "An agent chooses among its own tools",
    "response_format": "An agent answers with text",
    "stop": "An agent's answer has no stop sequences",
}


class AgentModels:
    """The agents as models. ``agents`` returns those of the files; ``make run`` replaces them."""

    def __init__(self, engine: "Engine", agents: Callable[[], AgentRegistry]) -> None:
        self._engine = engine
        self._agents = agents

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
        conversation = read_conversation(request.messages)
        events = self._engine.run(scope, agent, conversation.input, given=AgentContext(conversation.earlier))
        return all_texts(events) if _answers_at_once(agent) else last_text(events)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an agent of this name."""
        return name in self._agents()

    def _agent(self, scope: Scope, model: str) -> AgentSpec:
        try:
            agent = self._agents().get(model.removeprefix(AGENT_MODEL_PREFIX))
        except AgentNotFound:
            raise model_not_found(model) from None
        try:
            self._engine.check(scope, agent)
        except ModelNotAllowed as error:
            raise ModelNotAllowed(error.message, param="model") from None
        return agent


def _answers_at_once(agent: AgentSpec) -> bool:
    """Return whether the agent's first text is its answer, because it has neither tools to call nor code to run before."""
    kind = agent.build()
    return not kind.multi_turn or (isinstance(kind, ToolLoopAgent) and not agent.tools and kind.needs != "code")
