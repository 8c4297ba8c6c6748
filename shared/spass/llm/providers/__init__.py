"""The providers there are. A module is imported at the first use of a backend: no function pays for what it does not call."""

from importlib import import_module
from typing import Final, cast

from spass.llm.types import Provider
from spass.tenancy.config import BackendConfig

PROVIDERS: Final[dict[str, str]] = {
    "openai": "spass.llm.providers.openai:OpenAi",
    "xai": "spass.llm.providers.xai:Xai",
    "ollama": "spass.llm.providers.ollama:Ollama",
    "anthropic": "spass.llm.providers.anthropic:Anthropic",
    "bedrock": "spass.llm.providers.bedrock:Bedrock",
    "embedded": "spass.llm.providers.embedded:Embedded",
}


def make_provider(backend: BackendConfig, key: str | None) -> Provider:
    """The provider that speaks to ``backend`` with ``key``."""
    module, name = PROVIDERS[backend.provider].split(":")
    return cast(Provider, getattr(import_module(module), name)(backend, key))
