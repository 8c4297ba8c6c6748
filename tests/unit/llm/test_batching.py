"""How a list of texts is cut into requests, and how many of those may be under way together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.llm.batching import EmbeddingLimits, batches, embedding_limits
from spass.tenancy.config import BackendConfig

SIZES = st.builds(EmbeddingLimits, texts=st.integers(1, 5), text_bytes=st.integers(1, 12))


@given(st.lists(st.text("aé€😀\ud800", min_size=1, max_size=6)), SIZES)
def test_a_list_is_cut_into_as_few_requests_as_its_order_and_the_limits_allow(given: list[str], limits: EmbeddingLimits) -> None:
    cut = [*batches(given, limits)]
    assert [text for batch in cut for text in batch] == given
    for batch in cut:
        assert 1 <= len(batch) <= limits.texts
        assert len(batch) == 1 or size(batch) <= limits.text_bytes
    for batch, following in pairwise(cut):
        assert len(batch) == limits.texts or size((*batch, following[0])) > limits.text_bytes


def size(batch: Sequence[str]) -> int:
    return sum(len(text.encode(errors="replace")) for text in batch)


def backend(provider: str, **fields: Any) -> BackendConfig:
    return BackendConfig.model_validate({"provider": provider, **fields})


def test_openai_takes_as_many_texts_as_it_documents_at_a_byte_per_token() -> None:
    assert embedding_limits([backend("openai")], 384) == EmbeddingLimits(2048, 300_000, 4)


@pytest.mark.parametrize("unknown", [backend("openai", base_url="http://tei.internal/v1"), backend("ollama"), backend("xai")])
def test_a_server_of_unknown_limits_gets_little_at_once(unknown: BackendConfig) -> None:
    assert embedding_limits([unknown], 384) == EmbeddingLimits(32, 64 * 1024, 4)


def test_the_model_in_the_process_gets_one_batch_after_the_other() -> None:
    assert embedding_limits([backend("embedded")], 384).concurrency == 1


def test_a_request_fits_wherever_it_may_end_up() -> None:
    backends = [backend("openai", max_concurrent=3), backend("ollama", max_concurrent=20)]
    assert embedding_limits(backends, 384) == EmbeddingLimits(32, 64 * 1024, 3)
    assert embedding_limits([*backends, backend("embedded")], 384).concurrency == 1


def test_an_answer_of_long_vectors_stays_small_enough_to_read() -> None:
    assert embedding_limits([backend("openai")], 4096).texts == 256
    assert embedding_limits([backend("openai")], 2**21).texts == 1
    assert embedding_limits([], None) == EmbeddingLimits(32, 64 * 1024, 4)


def test_bedrock_takes_what_its_model_takes_wherever_it_is() -> None:
    backends = [backend("bedrock", model_names={"titan": "amazon.titan-embed-text-v2:0"}, base_url="https://x.example")]
    assert embedding_limits(backends, 1024, "titan") == EmbeddingLimits(1, 50_000, 8)
    assert embedding_limits(backends, 1024, "cohere.embed-multilingual-v3") == EmbeddingLimits(96, 96 * 2048, 4)
    assert embedding_limits([backend("bedrock", max_concurrent=2)], 1024, "amazon.titan-embed-text-v1").concurrency == 2
