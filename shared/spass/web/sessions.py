"""What the routes of sessions read: the agent in whose sessions a client writes, a model for summaries, and the header ``Prefer``
(https://www.rfc-editor.org/rfc/rfc7240)."""

import re
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers

from spass.core.errors import InvalidRequest, ModelNotAllowed
from spass.core.ids import AgentName
from spass.web.exchange import Exchange
from spass.web.public_routing import header_parameter

if TYPE_CHECKING:
    from spass.agents.spec import AgentSpec

RESPOND_ASYNC: Final = "respond-async"
PREFERENCE_APPLIED: Final = "Preference-Applied"
"""The header of an answer that names the preference that was applied."""

PREFER_PARAMETER: Final = header_parameter(
    "Prefer", "`respond-async`: answer 202 immediately and do the work in the background (RFC 7240)."
)

_QUOTED_VALUE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')


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
    """Return the model of the agent ``name``. That of a kind is the first chat model that the token may use. Raise AgentNotFound
    if there is neither an agent nor a kind of this name, and ModelNotAllowed if the token may not use any chat model."""
    from spass.agents.kinds.registry import KINDS

    if not KINDS.contains(name):
        return exchange.services.agents.get(name).model
    models = exchange.scope.caller.identity.chat_models(exchange.services.config)
    if not models:
        raise ModelNotAllowed("This token may not use any chat model of the catalogue.")
    return models[0].name


def prefers(headers: Headers, preference: str) -> bool:
    """Return True if the headers name ``preference``, with or without a value and parameters. Pass it in lower case."""
    # A quoted value may contain text that looks like another preference.
    preferences = _QUOTED_VALUE.sub("", ",".join(headers.getlist("prefer"))).split(",")
    return any(re.split("[;=]", part, maxsplit=1)[0].strip().lower() == preference for part in preferences)
