"""Which backends serve a model."""

from typing import Final

from spass.tenancy.config import BackendConfig

USUAL_CONNECTIONS: Final = 100
"""What a process opens at most to a backend that bounds nothing."""

_PREFIXES: Final = {"grok-": "xai", "claude-": "anthropic", "gpt-": "openai", "o1-": "openai", "o3-": "openai"}
_EMBEDDED_MODEL: Final = "all-minilm-l6-v2"
_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "xai": "XAI_API_KEY"}


def claimant(model: str) -> str | None:
    """The provider that ``model``'s name belongs to, if it belongs to one."""
    if model == _EMBEDDED_MODEL:
        return "embedded"
    return next((provider for prefix, provider in _PREFIXES.items() if model.startswith(prefix)), None)


def serves(backend: BackendConfig, model: str) -> bool:
    """A backend that lists models serves those and the ones it maps; any other serves what its provider's name stands for. Ollama
    takes every name that belongs to nobody."""
    if model in backend.model_names:
        return True
    if backend.supported_models:
        return model in backend.supported_models
    return (claimant(model) or "ollama") == backend.provider


def key_variable(backend: BackendConfig) -> str | None:
    """The environment variable that holds the backend's key; None if it needs none, as a compatible server may not."""
    if backend.api_key_env or backend.base_url:
        return backend.api_key_env
    return _KEYS.get(backend.provider)
