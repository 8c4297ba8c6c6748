"""Ollama, by its OpenAI-compatible half (https://docs.ollama.com/openai): the same code path as every other server."""

from typing import ClassVar

from spass.llm.providers.openai_compatible import OpenAiCompatible


class Ollama(OpenAiCompatible):
    base_url: ClassVar[str] = "http://127.0.0.1:11434/v1"

    def address(self) -> str:
        # Ollama's own variable and documents write the address without /v1.
        return super().address().removesuffix("/v1") + "/v1"
