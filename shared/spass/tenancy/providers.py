"""The registry of model providers: the names that ``gateway.yaml`` may say, and what stands behind each.

It stands here because the file is read here. Classes are named, not imported: ``llm.providers`` imports one at its first use.
"""

import re
from typing import Final, NamedTuple

_BEDROCK_REGION: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.")


class ProviderEntry(NamedTuple):
    """A provider: its class (``module:Class``), the variable that holds its key where a backend names none (None: it wants no
    key), and how the names of models begin that are its own.
    """

    code: str
    key: str | None = None
    models: tuple[str, ...] = ()


PROVIDERS: Final[dict[str, ProviderEntry]] = {
    "xai": ProviderEntry("spass.llm.providers.xai:Xai", "XAI_API_KEY", ("grok-",)),
    "anthropic": ProviderEntry("spass.llm.providers.anthropic:Anthropic", "ANTHROPIC_API_KEY", ("claude-",)),
    "openai": ProviderEntry("spass.llm.providers.openai:OpenAi", "OPENAI_API_KEY", ("gpt-", "o1-", "o3-")),
    "ollama": ProviderEntry("spass.llm.providers.ollama:Ollama"),
    "bedrock": ProviderEntry("spass.llm.providers.bedrock:Bedrock"),
    "embedded": ProviderEntry("spass.llm.providers.embedded:EmbeddedProvider", models=("all-minilm-l6-v2",)),
}
DEFAULT_PROVIDER: Final = "ollama"
"""Serves the models whose names are nobody's."""


def bedrock_region(base_url: str | None) -> str | None:
    """The region of AWS in an address of Bedrock; None where it says none."""
    named = _BEDROCK_REGION.search(base_url or "")
    return named[1] if named else None
