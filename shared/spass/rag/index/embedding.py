"""Embed texts with the configured model, as normalised vectors."""

from collections.abc import Sequence
from typing import Protocol, Self, cast

import numpy as np

from spass.calls.scope import Scope
from spass.core.errors import UpstreamError
from spass.models.types import EmbeddingReply
from spass.rag.index.manifest import EmbeddingModel
from spass.rag.index.segments import Vectors
from spass.tenancy.config import GatewayConfig


class EmbeddingCalls(Protocol):
    """The calls of the embedding model. The pipeline implements it."""

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        """Return one vector per text. Without texts, only check that the caller may use the model."""


class Embedder:
    """Embed texts with ``model`` through ``calls``."""

    def __init__(self, calls: EmbeddingCalls, model: EmbeddingModel) -> None:
        self._calls = calls
        self.model = model

    @classmethod
    def from_config(cls, calls: EmbeddingCalls, config: GatewayConfig) -> Self:
        """Return an embedder with the default embedding model of ``config``."""
        name = config.defaults.embedding_model
        # ``GatewayConfig`` refuses an embedding model without dimensions.
        return cls(calls, EmbeddingModel(name, cast(int, config.model(name).dimensions)))

    async def check_may_embed(self, scope: Scope) -> None:
        """Check that the caller may embed, without embedding anything. Raise ``ModelNotAllowed`` if the token may not use the
        model."""
        await self._calls.embed(scope, ())

    async def embed(self, scope: Scope, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``: (n, d) float32, rows normalised. A row of zeros stays as it is. Raise
        ``UpstreamError`` if the reply is not one vector of finite numbers per text, or does not have the configured
        dimensions."""
        reply = await self._calls.embed(scope, texts)
        expected = self.model.dimensions
        if (reply.count, reply.dimensions) != (len(texts), expected) or len(reply.data) != 4 * len(texts) * expected:
            raise UpstreamError(
                "The embedding model answered with the wrong number of vectors, or with vectors of the wrong size."
            )
        vectors = np.frombuffer(reply.data, "<f4").reshape(len(texts), expected)
        if not np.isfinite(vectors).all():
            raise UpstreamError("The embedding model answered with numbers that are not finite.")
        return normalise(vectors)


def normalise(vectors: Vectors) -> Vectors:
    """Scale each row to length 1, in float64. Rows of zeros stay as they are."""
    doubles = vectors.astype(np.float64)
    largest = np.abs(doubles).max(axis=1, keepdims=True)
    doubles /= np.where(largest == 0, 1.0, largest)
    norms = np.linalg.norm(doubles, axis=1, keepdims=True)
    return (doubles / np.where(norms == 0, 1.0, norms)).astype(np.float32)
