"""Call OpenAI, xAI and other servers that use OpenAI's format (https://platform.openai.com/docs/api-reference).

Each provider is a subclass of ``OpenAiCompatible`` with its address and its differences.
"""

import base64
import binascii
import re
from array import array
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from spass.core.messages import Image, Json, Message, TokenUsage, ToolSpec
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import HttpProvider
from spass.models.providers.openai_reader import OpenAiReader, Usage, UsagePayload
from spass.models.providers.payloads import FirstError, parse
from spass.models.providers.sse import ServerSentEvent
from spass.models.providers.unsupported_fields import reject_unsupported
from spass.models.types import (
    CallContext,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    NamedTool,
    ToolChoice,
    pack_rows,
)

_REASONING: Final = re.compile(r"o\d|gpt-[5-9]")
_VARIABLE_DIMENSIONS: Final = "text-embedding-3"


class OpenAiCompatible(HttpProvider[ServerSentEvent]):
    """Call ``/chat/completions`` and ``/embeddings`` below ``base_url``, with the key as a bearer token.

    ``unsupported_fields`` are OpenAI's fields that the server would ignore (see ``providers.unsupported_fields``).
    """

    chat_path: ClassVar[str] = "/chat/completions"
    unsupported_fields: ClassVar[frozenset[str]] = frozenset()

    def body(self, request: ChatRequest) -> dict[str, Json]:
        reject_unsupported(request, self.backend.provider, self.unsupported_fields)
        return chat_body(request, "max_tokens")

    def reader(self) -> OpenAiReader:
        return OpenAiReader(self.connection.secrets)

    def embedding_body(self, request: EmbeddingRequest) -> dict[str, Json]:
        return {"model": request.model, "input": request.texts}

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        return read_embeddings(await self.connection.post("/embeddings", self.embedding_body(request), context))


class OpenAi(OpenAiCompatible):
    """Call OpenAI, or another server with OpenAI's format at ``base_url``."""

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


class Xai(OpenAiCompatible):
    """Call xAI (https://docs.x.ai), which reports the cost of each call."""

    base_url: ClassVar[str] = "https://api.x.ai/v1"
    unsupported_fields: ClassVar[frozenset[str]] = frozenset({"logit_bias", "verbosity"})


def chat_body(request: ChatRequest, max_tokens_field: str) -> dict[str, Json]:
    """Return the body of POST /chat/completions. A stream must report its usage, because costs are computed from it."""
    tools = [_tool(tool) for tool in request.tools]
    fields: dict[str, Json] = {
        "model": request.model,
        "messages": [_message(message) for message in request.messages],
        "tools": tools or None,
        "tool_choice": _tool_choice(request.tool_choice) if tools else None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        max_tokens_field: request.max_tokens,
        "stop": request.stop or None,
        "seed": request.seed,
        "response_format": request.response_format,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream else None,
    }
    # Without tools OpenAI refuses parallel_tool_calls and tool_choice.
    extra = {name: value for name, value in request.extra.items() if tools or name != "parallel_tool_calls"}
    return {**extra, **{name: value for name, value in fields.items() if value is not None}}


def _tool(tool: ToolSpec) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Json]:
    content = [_part(part) for part in message.parts] or message.content
    body: dict[str, Json] = {"role": message.role.value, "content": content}
    if message.name is not None:
        body["name"] = message.name
    if message.tool_calls:
        body["content"] = content or None
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def _part(part: str | Image) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _tool_choice(choice: ToolChoice | None) -> Json:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice


class VectorPayload(BaseModel):
    index: Annotated[int, Field(ge=0)] | None = None
    embedding: Annotated[list[float], FirstError] | str


class EmbeddingPayload(BaseModel):
    data: Annotated[list[VectorPayload], FirstError]
    usage: Usage = None


def read_embeddings(body: bytes) -> EmbeddingReply:
    """Return the vectors in the order of their texts. A vector is a list of numbers or base64."""
    payload = parse(EmbeddingPayload, body)
    vectors = {position if vector.index is None else vector.index: vector for position, vector in enumerate(payload.data)}
    if sorted(vectors) != list(range(len(payload.data))):
        raise malformed_response("vectors are missing or doubled")
    rows = [_vector(vectors[position].embedding) for position in range(len(vectors))]
    if len({len(row) for row in rows}) > 1 or not all(rows):
        raise malformed_response("vectors have different lengths")
    dimensions = len(rows[0]) // array("f").itemsize if rows else 0
    usage = payload.usage or UsagePayload()
    tokens = TokenUsage(prompt_tokens=usage.prompt_tokens or usage.total_tokens)
    return EmbeddingReply(b"".join(rows), len(rows), dimensions, tokens)


def _vector(embedding: list[float] | str) -> bytes:
    if not isinstance(embedding, str):
        return pack_rows([embedding])
    try:
        data = base64.b64decode(embedding, validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed_response("a vector is not base64") from error
    if len(data) % array("f").itemsize:
        raise malformed_response("a vector is not float32")
    return data
