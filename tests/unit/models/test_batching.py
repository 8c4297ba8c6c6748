"""Division of a list of texts into requests, and the number of requests in flight."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.models.batching import EmbeddingLimits, batches, embedding_limits
from spass.tenancy.config import BackendConfig

SIZES = st.builds(EmbeddingLimits, texts=st.integers(1, 5), text_bytes=st.integers(1, 12))


@given(st.lists(st.text("aé€😀\ud800", min_size=1, max_size=6)), SIZES)
def test_batches_are_as_large_as_the_limits_allow(texts: list[str], limits: EmbeddingLimits) -> None:
    all_batches = [*batches(texts, limits)]
    assert [text for batch in all_batches for text in batch] == texts
    for batch in all_batches:
        assert 1 <= len(batch) <= limits.texts
        assert len(batch) == 1 or size(batch) <= limits.text_bytes
    for batch, next_batch in pairwise(all_batches):
        assert len(batch) == limits.texts or size((*batch, next_batch[0])) > limits.text_bytes


def size(batch: Sequence[str]) -> int:
    return sum(len(text.encode(errors="replace")) for text in batch)


def backend(provider: str, **fields: Any) -> BackendConfig:
    return BackendConfig.model_validate({"provider": provider, **fields})


def test_openai_has_its_documented_limits() -> None:
    assert embedding_limits([backend("openai")], 384) == EmbeddingLimits(2048, 300_000, 4)


@pytest.mark.parametrize("unknown", [backend("openai", base_url="http://tei.internal/v1"), backend("ollama"), backend("xai")])
def test_a_server_with_unknown_limits_has_documents_per_batch(unknown: BackendConfig) -> None:
    assert embedding_limits([unknown], 384) == EmbeddingLimits(32, 64 * 1024, 4)


def test_the_embedded_model_has_a_concurrency_of_one() -> None:
    assert embedding_limits([backend("embedded")], 384).concurrency == 1


def test_the_limits_fit_every_backend_of_the_model() -> None:
    backends = [backend("openai", max_concurrent=3), backend("ollama", max_concurrent=20)]
    assert embedding_limits(backends, 384) == EmbeddingLimits(32, 64 * 1024, 3)
    assert embedding_limits([*backends, backend("embedded")], 384).concurrency == 1


def test_long_vectors_reduce_the_number_of_texts() -> None:
    assert embedding_limits([backend("openai")], 4096).texts == 256
    assert embedding_limits([backend("openai")], 2**21).texts == 1
    assert embedding_limits([], None) == EmbeddingLimits(32, 64 * 1024, 4)


def test_bedrock_has_the_limits_of_the_model() -> None:
    backends = [backend("bedrock", model_names={"titan": "amazon.titan-embed-text-v2:0"}, base_url="https://x.example")]
    assert embedding_limits(backends, 1024, "titan") == EmbeddingLimits(1, 50_000, 8)
    assert embedding_limits(backends, 1024, "cohere.embed-multilingual-v3") == EmbeddingLimits(96, 96 * 2048, 4)
    assert embedding_limits([backend("bedrock", max_concurrent=2)], 1024, "amazon.titan-embed-text-v1").concurrency == 2
