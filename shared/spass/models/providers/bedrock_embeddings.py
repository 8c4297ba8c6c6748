"""Embed texts on Bedrock with Amazon's Titan (one text a request) or Cohere's models (up to 96)."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Final

from pydantic import BaseModel

from spass.core.json import encode_utf8
from spass.core.messages import Json, TokenUsage
from spass.models.errors import BackendAuthError
from spass.models.providers.http import Connection, malformed_response
from spass.models.providers.payloads import FirstError, Tokens, parse
from spass.models.types import CallContext, EmbeddingReply, EmbeddingRequest, pack_rows

COHERE_TEXTS: Final = 96
_COHERE_WINDOW: Final = 1024
"""Bytes. Version 3 reads at most 2048 characters and 512 tokens of a text. 1024 bytes stay under both limits if a token has two
bytes or more on average. Text in any language has; a list of checksums may not."""

Row = Annotated[list[float], FirstError]
Rows = Annotated[list[Row], FirstError]


class TitanPayload(BaseModel):
    """https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-embed-text.html"""

    embedding: Row
    inputTextTokenCount: Tokens = 0  # noqa: N815 - the wire's name


class CoherePayload(BaseModel):
    """https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-embed-v3.html"""

    embeddings: Rows | dict[str, Rows]

    @property
    def rows(self) -> list[Row]:
        return self.embeddings.get("float", []) if isinstance(self.embeddings, dict) else self.embeddings


async def embed(connection: Connection, path: str, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
    """Return one vector per text. Raise ``BackendAuthError`` if ``request.model`` is neither a Titan nor a Cohere model."""
    if "titan-embed" in request.model:
        return await _titan(connection, path, request, context)
    if "cohere.embed" in request.model:
        return await _cohere(connection, path, request, context)
    raise BackendAuthError("Of Bedrock's embedding models, this gateway supports only Titan's and Cohere's.")


async def _titan(connection: Connection, path: str, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
    dimensions_field = _dimensions_field("dimensions", request, choosing="titan-embed-text-v2")
    payloads = [
        parse(TitanPayload, await connection.post(path, {"inputText": text, **dimensions_field}, context))
        for text in request.texts
    ]
    counts = [payload.inputTextTokenCount for payload in payloads]
    return _reply([payload.embedding for payload in payloads], sum(counts) if all(counts) else 0)


async def _cohere(connection: Connection, path: str, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
    """Embed texts. Split a text that exceeds the model's window, and average the vectors of its windows.

    All texts are embedded as documents, because a request does not say whether a text is a question. Only some models report
    their tokens, and only in a header, so they are not counted.
    """
    windows = [[text] if "embed-v4" in request.model else [*_windows(text)] for text in request.texts]
    dimensions_field = _dimensions_field("output_dimension", request, choosing="embed-v4")
    pieces = (piece for text in windows for piece in text)
    rows: list[Row] = []
    while batch := [*islice(pieces, COHERE_TEXTS)]:
        body: dict[str, Json] = {
            "texts": batch,
            "input_type": "search_document",
            "embedding_types": ["float"],
            "truncate": "NONE",
            **dimensions_field,
        }
        vectors = parse(CoherePayload, await connection.post(path, body, context)).rows
        if len(vectors) != len(batch):
            raise malformed_response("vectors are missing or doubled")
        rows += vectors
    remaining_rows = iter(rows)
    return _reply([_mean_direction([*islice(remaining_rows, len(text))]) for text in windows], 0)


def _dimensions_field(field: str, request: EmbeddingRequest, *, choosing: str) -> dict[str, int]:
    """Return the field for the dimensions if the model's name contains ``choosing``, or no field."""
    return {field: request.dimensions} if request.dimensions is not None and choosing in request.model else {}


def _windows(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces of at most ``_COHERE_WINDOW`` bytes, cut between characters. An empty text is one piece."""
    data = encode_utf8(text)
    begin = 0
    while begin < len(data) or not begin:
        end = begin + _COHERE_WINDOW
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield data[begin:end].decode()
        begin = end


def _mean_direction(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    if len({len(row) for row in rows}) > 1:
        raise malformed_response("vectors have different lengths")
    try:
        sums = [math.fsum(numbers) for numbers in zip(*rows, strict=True)]
    except (OverflowError, ValueError) as error:
        raise malformed_response("the numbers of a vector are too large") from error
    length = math.hypot(*sums)
    return [number / length for number in sums] if length else sums


def _reply(rows: Sequence[Row], tokens: int) -> EmbeddingReply:
    return EmbeddingReply(pack_rows(rows), len(rows), len(rows[0]) if rows else 0, TokenUsage(prompt_tokens=tokens))
