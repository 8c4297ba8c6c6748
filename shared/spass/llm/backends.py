"""Which backends serve a model."""

from collections.abc import Iterable
from typing import Final

from spass.tenancy.config import BackendConfig
from spass.tenancy.providers import DEFAULT_PROVIDER, PROVIDERS

DEFAULT_MAX_CONNECTIONS: Final = 100
"""What a process opens at most to a backend that bounds nothing."""


def provider_of_model(model: str) -> str | None:
    """The provider that ``model``'s name belongs to, if it belongs to one."""
    return next((name for name, provider in PROVIDERS.items() if model.startswith(provider.models)), None)


def serves(backend: BackendConfig, model: str) -> bool:
    """A backend that lists models serves those and the ones it maps; any other serves what its provider's name stands for. Ollama
    takes every name that belongs to nobody."""
    if model in backend.model_names:
        return True
    if backend.supported_models:
        return model in backend.supported_models
    return (provider_of_model(model) or DEFAULT_PROVIDER) == backend.provider


def key_variable(backend: BackendConfig) -> str | None:
    """The environment variable that holds the backend's key; None if it needs none, as a compatible server may not."""
    if backend.api_key_env or backend.base_url:
        return backend.api_key_env
    return PROVIDERS[backend.provider].key


def key_variables(backends: Iterable[BackendConfig]) -> list[str]:
    """Return the environment variables that hold the keys of these backends, each once."""
    return list(dict.fromkeys(filter(None, map(key_variable, backends))))
