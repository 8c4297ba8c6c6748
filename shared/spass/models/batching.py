"""Limit the texts in one embedding request, and the requests in flight for one list of texts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spass.core.json import encode_utf8
from spass.tenancy.config import BackendConfig

_CONCURRENT_REQUESTS: Final = 4
_MAX_RESPONSE_NUMBERS: Final = 2**20  # numbers in one answer: about 20 MB as JSON text


@dataclass(frozen=True, slots=True)
class EmbeddingLimits:
    """``texts`` and ``text_bytes`` (UTF-8) limit one request, ``concurrency`` the requests in flight for one list of texts."""

    texts: int
    text_bytes: int
    concurrency: int = _CONCURRENT_REQUESTS


_DEFAULT_LIMITS: Final = EmbeddingLimits(32, 64 * 1024)
"""For servers whose limits are the operator's choice or unknown. By default, Text Embeddings Inference refuses more than 32
texts (https://huggingface.co/docs/text-embeddings-inference/cli_arguments), Mistral more than 16,384 tokens."""

_LIMITS: Final = {
    # 2048 texts and 300,000 tokens in all (https://platform.openai.com/docs/api-reference/embeddings/create). No token is shorter
    # than a byte.
    "openai": EmbeddingLimits(2048, 300_000),
    # The model runs in this process; small batches let other requests run in between.
    "embedded": EmbeddingLimits(64, 512 * 1024, concurrency=1),
    # 96 texts of 2048 characters (https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-embed-v3.html).
    "bedrock": EmbeddingLimits(96, 96 * 2048),
}
_SINGLE_TEXT_LIMITS: Final = EmbeddingLimits(1, 50_000, concurrency=8)
"""Titan, on Bedrock: one text of 50,000 characters."""


def embedding_limits(backends: Sequence[BackendConfig], dimensions: int | None, model: str = "") -> EmbeddingLimits:
    """Return limits for ``model`` that every backend accepts. ``dimensions`` is the length of a vector."""
    all_limits = [_limits_of(backend, model) for backend in backends] or [_DEFAULT_LIMITS]
    return EmbeddingLimits(
        texts=max(1, min(_MAX_RESPONSE_NUMBERS // (dimensions or 1), *(limits.texts for limits in all_limits))),
        text_bytes=min(limits.text_bytes for limits in all_limits),
        concurrency=min(limits.concurrency for limits in all_limits),
    )


def _limits_of(backend: BackendConfig, model: str) -> EmbeddingLimits:
    if backend.provider == "bedrock" and "titan" in backend.model_names.get(model, model):
        limits = _SINGLE_TEXT_LIMITS
    elif backend.base_url and backend.provider != "bedrock":
        limits = _DEFAULT_LIMITS
    else:
        limits = _LIMITS.get(backend.provider, _DEFAULT_LIMITS)
    return replace(limits, concurrency=min(limits.concurrency, backend.max_concurrent or limits.concurrency))


def batches(texts: Iterable[str], limits: EmbeddingLimits) -> Iterator[tuple[str, ...]]:
    """Yield ``texts`` in order, in batches as large as ``limits`` allow. A text over the byte limit is a batch of one."""
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(encode_utf8(text))
        if batch and (len(batch) == limits.texts or size + length > limits.text_bytes):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(text)
        size += length
    if batch:
        yield tuple(batch)
