"""The models that a caller can name, as OpenAI lists them (https://platform.openai.com/docs/api-reference/models)."""

from datetime import UTC, datetime, time

from spass.core.messages import Json
from spass.llm.backends import serves
from spass.tenancy.config import GatewayConfig, ModelConfig, no_such_model
from spass.tenancy.identity import Identity


def available_models(config: GatewayConfig, identity: Identity) -> list[Json]:
    """Return the models of the catalogue that some backend serves and ``identity`` may use, in the catalogue's order.

    A backend counts as serving a model even if its key is missing: only a call reads keys.
    """
    return [_model_object(model) for model in config.models if _available(model, config, identity)]


def available_model(config: GatewayConfig, identity: Identity, name: str) -> Json:
    """Return one of those models.

    Raises:
        ModelNotFound: it is not among them.
    """
    model = config.model(name)
    if not _available(model, config, identity):
        raise no_such_model(name)
    return _model_object(model)


def _available(model: ModelConfig, config: GatewayConfig, identity: Identity) -> bool:
    return identity.allows(model.name) and any(serves(backend, model.name) for backend in config.llm.backends)


def _model_object(model: ModelConfig) -> Json:
    created = datetime.combine(model.created, time(), UTC)
    return {
        "id": model.name,
        "object": "model",
        "created": int(created.timestamp()),
        "owned_by": "spass",
        "kind": model.kind,
    }
