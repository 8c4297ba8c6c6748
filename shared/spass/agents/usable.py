"""Tell whether a caller can use an agent, before anything is sent to it."""

from collections.abc import Callable
from typing import TypeAlias

from spass.agents.kinds.base import BaseAgent
from spass.agents.kinds.registry import KINDS
from spass.agents.spec import AgentSpec
from spass.core.errors import ModelNotAllowed, SandboxUnavailable
from spass.models.backends import is_served
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Identity

UnusableReason: TypeAlias = Callable[[AgentSpec], str | None]
"""Return why an agent cannot be used, for people, or None if it can."""


def check_token(identity: Identity, agent: AgentSpec) -> None:
    """Raise ModelNotAllowed if a token of ``identity`` may not use the model of ``agent``."""
    if not identity.allows(agent.model):
        raise ModelNotAllowed(f"This token may not use the model '{agent.model}' of the agent '{agent.name}'.")


def always_usable(_: AgentSpec) -> str | None:
    """Return None: nobody in particular asks."""
    return None


def unusable_for(
    identity: Identity, config: GatewayConfig, kind_reason: Callable[[type[BaseAgent]], str | None]
) -> UnusableReason:
    """Return the function that tells why ``identity`` cannot use an agent: its token may not use one of the agent's models, no
    backend serves one, or ``kind_reason`` says why its kind does not run here. It may start a process, so call it in a thread."""

    def reason(agent: AgentSpec) -> str | None:
        models = [agent.model, *([config.defaults.embedding_model] if agent.rag_index is not None else ())]
        for model in models:
            if not identity.allows(model):
                return f"This token may not use the model '{model}', which the agent needs."
            if not is_served(config.llm, model):
                return f"No backend of this gateway serves the model '{model}', which the agent needs."
        kind = KINDS.get(agent.kind)
        if agent.container is not None:
            try:
                agent.container.check()
            except SandboxUnavailable as error:
                return error.message
            if kind.needs == "code":  # it runs in the container
                return None
        return kind_reason(kind)

    return reason
