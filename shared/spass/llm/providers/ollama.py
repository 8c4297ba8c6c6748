"""Call Ollama with its OpenAI-compatible API (https://docs.ollama.com/openai)."""

from dataclasses import replace
from typing import ClassVar

from spass.core.messages import Json
from spass.llm.providers.openai_compatible import OpenAiCompatible
from spass.llm.providers.unsupported_fields import reject_image_urls
from spass.llm.types import ChatRequest


class Ollama(OpenAiCompatible):
    base_url: ClassVar[str] = "http://127.0.0.1:11434/v1"
    unsupported_fields: ClassVar[frozenset[str]] = frozenset({"tool_choice", "parallel_tool_calls", "logit_bias", "verbosity"})

    def address(self) -> str:
        # Ollama's own variable and documentation use the address without /v1.
        return super().address().removesuffix("/v1") + "/v1"

    def body(self, request: ChatRequest) -> dict[str, Json]:
        reject_image_urls(request, "Ollama")
        # Ollama ignores tool_choice, but a model without tools cannot call any.
        return super().body(replace(request, tools=()) if request.tool_choice == "none" else request)
