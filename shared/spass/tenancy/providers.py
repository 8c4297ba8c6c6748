"""The registry of model providers: the names that ``gateway.yaml`` may say, and the class behind each.

It stands here because the file is read here. Classes are named, not imported: ``llm.providers`` imports one at its first use.
"""

from typing import Final

PROVIDERS: Final[dict[str, str]] = {
    "xai": "spass.llm.providers.xai:Xai",
    "anthropic": "spass.llm.providers.anthropic:Anthropic",
    "openai": "spass.llm.providers.openai:OpenAi",
    "ollama": "spass.llm.providers.ollama:Ollama",
    "bedrock": "spass.llm.providers.bedrock:Bedrock",
    "embedded": "spass.llm.providers.embedded:Embedded",
}
