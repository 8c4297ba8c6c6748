"""List the model providers: each name that ``gateway.yaml`` may use as ``provider``, with its class.

The list has the paths of the classes: ``make_provider`` imports a class at its first use, to keep cold starts short.
"""

from importlib import import_module
from typing import Final, NamedTuple, cast

from spass.models.types import Provider
from spass.tenancy.config import BackendConfig


class ProviderEntry(NamedTuple):
    """``class_path`` is ``module:Class``. ``key_variable`` is the environment variable with its key, unless the backend names
    another (None: the provider needs no key). A model whose name starts with one of ``model_prefixes`` belongs to this provider.
    """

    class_path: str
    key_variable: str | None = None
    model_prefixes: tuple[str, ...] = ()


PROVIDERS: Final[dict[str, ProviderEntry]] = {
    "xai": ProviderEntry("spass.models.providers.openai_compatible:Xai", "XAI_API_KEY", ("grok-",)),
    "anthropic": ProviderEntry("spass.models.providers.anthropic:Anthropic", "ANTHROPIC_API_KEY", ("claude-",)),
    "openai": ProviderEntry("spass.models.providers.openai_compatible:OpenAi", "OPENAI_API_KEY", ("gpt-", "o1-", "o3-")),
    "ollama": ProviderEntry("spass.models.providers.ollama:Ollama"),
    "bedrock": ProviderEntry("spass.models.providers.bedrock:Bedrock"),
    "embedded": ProviderEntry("spass.models.providers.embedded:EmbeddedProvider", model_prefixes=("all-minilm-l6-v2",)),
}
DEFAULT_PROVIDER: Final = "ollama"
"""The provider of models whose names match no ``model_prefixes``."""


def make_provider(backend: BackendConfig, key: str | None) -> Provider:
    """Return a provider that calls ``backend`` with ``key``."""
    module, name = PROVIDERS[backend.provider].class_path.split(":")
    return cast(Provider, getattr(import_module(module), name)(backend, key))
