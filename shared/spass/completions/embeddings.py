"""The body and the answer of ``POST /v1/embeddings`` (https://platform.openai.com/docs/api-reference/embeddings/create)."""

import base64
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from spass.completions.body import Body
from spass.completions.responses import Embedding, EmbeddingList, EmbeddingUsage
from spass.core.errors import InvalidRequest
from spass.core.json import encode_utf8
from spass.models.types import EmbeddingReply
from spass.tenancy.config import MAX_EMBEDDING_INPUTS, GatewayLimits, ModelConfig

MAX_TEXT_BYTES: Final = 32 * 1024
"""Bytes of one text. No model reads a longer one to its end, and embedding it would block a processor."""

_TEXT_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_BYTES}


def _read_texts(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise PydanticCustomError("embedding_input", "must be a text or a list of texts")
    if not texts:
        raise PydanticCustomError("embedding_input", "is empty; send at least one text")
    if len(texts) > MAX_EMBEDDING_INPUTS:
        reason = {"count": len(texts), "limit": MAX_EMBEDDING_INPUTS}
        raise PydanticCustomError(
            "embedding_input", "holds {count} texts; limits.embedding_inputs allows at most {limit}", reason
        )
    for number, text in enumerate(texts):
        if isinstance(text, int | list) and not isinstance(text, bool):
            raise PydanticCustomError("embedding_input", "lists of token numbers are not supported; send text")
        if not isinstance(text, str):
            raise PydanticCustomError("embedding_input", "text {number} is not a text", {"number": number})
        if not text:
            raise PydanticCustomError("embedding_input", "text {number} is empty", {"number": number})
        if len(encode_utf8(text)) > MAX_TEXT_BYTES:
            reason = {"number": number, "limit": MAX_TEXT_BYTES}
            raise PydanticCustomError("embedding_input", "text {number} is over {limit} bytes of UTF-8", reason)
    return texts


class EmbeddingsRequest(Body):
    """The body of an embeddings request."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    input: Annotated[
        list[str],
        BeforeValidator(_read_texts),
        WithJsonSchema(
            {
                "anyOf": [
                    _TEXT_SCHEMA,
                    {
                        "type": "array",
                        "items": _TEXT_SCHEMA,
                        "minItems": 1,
                        "maxItems": MAX_EMBEDDING_INPUTS,
                        "description": "At most `limits.embedding_inputs` of gateway.yaml, 256 by default.",
                    },
                ]
            }
        ),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


def check_count(request: EmbeddingsRequest, limits: GatewayLimits) -> None:
    """Raise ``InvalidRequest`` if there are more texts than this gateway takes in one request."""
    if len(request.input) > limits.embedding_inputs:
        raise InvalidRequest(
            f"input holds {len(request.input)} texts; this gateway takes at most {limits.embedding_inputs} in one request. Send "
            f"fewer, or ask its operator to raise limits.embedding_inputs in gateway.yaml (up to {MAX_EMBEDDING_INPUTS}).",
            param="input",
        )


def check_dimensions(request: EmbeddingsRequest, model: ModelConfig) -> None:
    """Raise ``InvalidRequest`` if the model has other dimensions."""
    if request.dimensions not in (None, model.dimensions):
        raise InvalidRequest(f"'{model.name}' has {model.dimensions} dimensions; they cannot be changed.", param="dimensions")


def embeddings_response(request: EmbeddingsRequest, reply: EmbeddingReply) -> EmbeddingList:
    """Return the vectors as OpenAI sends them: numbers, or base64 of float32, little-endian."""
    vectors = _encode_rows(reply) if request.encoding_format == "base64" else reply.rows()
    tokens = reply.usage.prompt_tokens
    return EmbeddingList(
        data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(vectors)],
        model=request.model,
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _encode_rows(reply: EmbeddingReply) -> list[str]:
    size = 4 * reply.dimensions
    return [base64.b64encode(reply.data[start : start + size]).decode() for start in range(0, len(reply.data), size or 1)]
