"""The models that a caller may use, as OpenAI lists them (https://platform.openai.com/docs/api-reference/models)."""

from datetime import UTC, datetime, time
from typing import TYPE_CHECKING

from spass.completions.responses import Model, ModelList
from spass.core.ids import AGENT_MODEL_PREFIX
from spass.models.backends import is_served
from spass.tenancy.config import GatewayConfig, ModelConfig, model_not_found
from spass.tenancy.identity import Identity

if TYPE_CHECKING:
    from spass.agents.registry import AgentRegistry


def available_models(config: GatewayConfig, agents: "AgentRegistry", identity: Identity) -> ModelList:
    """Return the models that a backend serves and ``identity`` may use: those of the catalogue in its order, then the agents by
    name. An agent is available if its model is. The backend's key may be missing: only a call reads keys."""
    models = [_answer(model) for model in config.models if _is_available(model, config, identity)]
    for agent in agents.list().agents:
        model = config.model(agent.model)
        if _is_available(model, config, identity):
            models.append(_answer(model, AGENT_MODEL_PREFIX + agent.name))
    return ModelList(data=models)


def available_model(config: GatewayConfig, agents: "AgentRegistry", identity: Identity, name: str) -> Model:
    """Return the model ``name``. Raise ModelNotFound if it is not among ``available_models``."""
    models = {model.id: model for model in available_models(config, agents, identity).data}
    if name in models:
        return models[name]
    raise model_not_found(name, names_agent=AGENT_MODEL_PREFIX + name in models)


def _is_available(model: ModelConfig, config: GatewayConfig, identity: Identity) -> bool:
    return identity.allows(model.name) and is_served(config.llm, model.name)


def _answer(model: ModelConfig, name: str | None = None) -> Model:
    created = datetime.combine(model.created, time(), UTC)
    return Model(id=name or model.name, created=int(created.timestamp()), kind=model.kind)
