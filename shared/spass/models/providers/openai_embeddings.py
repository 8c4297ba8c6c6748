"""Read embeddings in OpenAI's format."""

import base64
import binascii
from array import array
from typing import Annotated

from pydantic import BaseModel, Field

from spass.core.messages import TokenUsage
from spass.models.providers.http import malformed_response
from spass.models.providers.openai_reader import Usage, UsagePayload
from spass.models.providers.payloads import parse
from spass.models.types import EmbeddingReply, pack_rows


class VectorPayload(BaseModel):
    index: Annotated[int, Field(ge=0)] | None = None
    embedding: list[float] | str


class EmbeddingPayload(BaseModel):
    data: list[VectorPayload]
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
