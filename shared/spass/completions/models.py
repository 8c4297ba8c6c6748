"""The models that a caller may use, as OpenAI lists them (https://platform.openai.com/docs/api-reference/models)."""

from datetime import UTC, datetime, time

from spass.completions.answers import Model, ModelList
from spass.llm.backends import is_served
from spass.tenancy.config import GatewayConfig, ModelConfig, model_not_found
from spass.tenancy.identity import Identity


def available_models(config: GatewayConfig, identity: Identity) -> ModelList:
    """Return the models of the catalogue that a backend serves and ``identity`` may use, in the catalogue's order. The backend's
    key may be missing: only a call reads keys."""
    return ModelList(data=[_answer(model) for model in config.models if _is_available(model, config, identity)])


def available_model(config: GatewayConfig, identity: Identity, name: str) -> Model:
    """Return the model ``name``.

    Raises:
        ModelNotFound: it is not among ``available_models``.
    """
    model = config.model(name)
    if not _is_available(model, config, identity):
        raise model_not_found(name)
    return _answer(model)


def _is_available(model: ModelConfig, config: GatewayConfig, identity: Identity) -> bool:
    return identity.allows(model.name) and is_served(config.llm, model.name)


def _answer(model: ModelConfig) -> Model:
    created = datetime.combine(model.created, time(), UTC)
    return Model(id=model.name, created=int(created.timestamp()), kind=model.kind)
