"""Call OpenAI, or another server with OpenAI's format at ``base_url``."""

import re
from typing import ClassVar, Final

from spass.core.messages import Json
from spass.models.providers.openai_compatible import OpenAiCompatible
from spass.models.providers.openai_wire import chat_body
from spass.models.types import ChatRequest, EmbeddingRequest

_REASONING: Final = re.compile(r"o\d|gpt-[5-9]")
_VARIABLE_DIMENSIONS: Final = "text-embedding-3"


class OpenAi(OpenAiCompatible):
    base_url: ClassVar[str] = "https://api.openai.com/v1"

    def body(self, request: ChatRequest) -> dict[str, Json]:
        # OpenAI's reasoning models refuse the old name of the limit; compatible servers may not know the new one.
        is_new_name = self.backend.base_url is None or _REASONING.match(request.model)
        return chat_body(request, "max_completion_tokens" if is_new_name else "max_tokens")

    def embedding_body(self, request: EmbeddingRequest) -> dict[str, Json]:
        body = {**super().embedding_body(request), "encoding_format": "base64"}
        if request.dimensions is not None and request.model.startswith(_VARIABLE_DIMENSIONS):
            body["dimensions"] = request.dimensions
        return body
