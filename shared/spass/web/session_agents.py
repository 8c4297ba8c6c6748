"""The agents of sessions: those in whose sessions a client may write, and their models."""

from typing import TYPE_CHECKING

from spass.core.errors import InvalidRequest, ModelNotAllowed
from spass.core.ids import AgentName
from spass.web.exchange import Exchange

if TYPE_CHECKING:
    from spass.agents.spec import AgentSpec


def agent_of_sessions(exchange: Exchange, name: AgentName) -> "AgentSpec":
    """Return the agent ``name``, in whose sessions a client writes.

    Raises:
        AgentNotFound: there is neither an agent nor a kind of this name.
        InvalidRequest: it is a kind, or runs as an operator. Such a session is found, not chosen: only runs continue it.
    """
    from spass.agents.kinds.registry import KINDS

    if KINDS.contains(name):
        message = (
            f"'{name}' is a kind. Its sessions are those of operators and of managed agents, which only their runs continue: "
        )
        raise InvalidRequest(
            f"{message}send the input to /v1/ask with params.operator_id, or to the managed agent.", param="name"
        )
    agent = exchange.services.agents.get(name)
    refuse_sessions(agent)
    return agent


def refuse_sessions(agent: "AgentSpec") -> None:
    """Raise InvalidRequest if ``agent`` runs as an operator, whose session is found and not chosen."""
    if agent.operator_id is not None:
        message = f"All runs of the agent '{agent.name}' are turns of one session, which the gateway finds. Send the message to "
        raise InvalidRequest(f"{message}/a1/agents/{agent.name}/chat or /c1/agents/{agent.name}/chat.", param="session_id")


def fallback_model(exchange: Exchange, name: AgentName) -> str:
    """Return the model of the agent ``name``. That of a kind is the first chat model that the token may use.

    Raises:
        AgentNotFound: there is neither an agent nor a kind of this name.
        ModelNotAllowed: the token may not use any chat model.
    """
    from spass.agents.kinds.registry import KINDS

    if not KINDS.contains(name):
        return exchange.services.agents.get(name).model
    models = exchange.scope.caller.identity.chat_models(exchange.services.config)
    if not models:
        raise ModelNotAllowed("This token may not use any chat model of the catalogue.")
    return models[0].name
