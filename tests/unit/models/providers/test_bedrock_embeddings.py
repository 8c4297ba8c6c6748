"""Embeddings of Titan and Cohere with InvokeModel. A text that is too long for Cohere's v3 models is sent in pieces (windows)."""

import json
import math
from typing import cast

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Json, TokenUsage
from spass.models.errors import BackendAuthError, BackendContextLength, BackendUnavailable
from spass.models.providers.bedrock import Bedrock
from spass.models.router import Router
from spass.models.types import EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import LlmConfig, ModelConfig
from tests.unit.models.scripted_upstream import KEY, Payload, Upstream, backend, context, json_answer

pytestmark = pytest.mark.anyio

TITAN = "amazon.titan-embed-text-v2:0"
COHERE = "cohere.embed-multilingual-v3"


async def embed(upstream: Upstream, model: str, *texts: str) -> EmbeddingReply:
    return await Bedrock(backend("bedrock"), KEY, transport=upstream.transport).embed(EmbeddingRequest(model, texts), context())


@pytest.mark.parametrize("model", ["amazon.titan-embed-text-v1", TITAN])
async def test_titan_gets_one_request_per_text(model: str) -> None:
    upstream = Upstream(
        json_answer({"embedding": [1, 2], "inputTextTokenCount": 3, "embeddingsByType": {"float": [1, 2]}}),
        json_answer({"embedding": [0.5, -1], "inputTextTokenCount": 4}),
    )
    reply = await embed(upstream, model, "a", "b")
    assert [request.body for request in upstream.requests] == [{"inputText": "a"}, {"inputText": "b"}]
    assert upstream.requests[0].url.endswith(f"/model/{model.replace(':', '%3A')}/invoke")
    assert reply.rows() == [[1.0, 2.0], [0.5, -1.0]]
    assert (reply.count, reply.dimensions, reply.usage) == (2, 2, TokenUsage(7))


@pytest.mark.parametrize("count", [-1, 0, 10**13, None, "many"])
async def test_an_invalid_token_count_makes_the_usage_unknown(count: Json) -> None:
    upstream = Upstream(
        json_answer({"embedding": [1, 2], "inputTextTokenCount": 3}),
        json_answer({"embedding": [3, 4], "inputTextTokenCount": count}),
    )
    reply = await embed(upstream, TITAN, "a", "b")
    assert (reply.count, reply.usage) == (2, TokenUsage())


@pytest.mark.parametrize("model", [COHERE, "eu.cohere.embed-v4:0"])
@pytest.mark.parametrize("by_type", [True, False])
async def test_cohere_gets_all_texts_in_one_request(model: str, by_type: bool) -> None:
    rows: Json = [[1, 2], [0.5, -1]]
    upstream = Upstream(json_answer({"embeddings": {"float": rows} if by_type else rows, "response_type": "x"}))
    reply = await embed(upstream, model, "a", "b")
    assert [request.body for request in upstream.requests] == [
        {"texts": ["a", "b"], "input_type": "search_document", "embedding_types": ["float"], "truncate": "NONE"}
    ]
    assert reply.rows() == [[1.0, 2.0], [0.5, -1.0]]


@pytest.mark.parametrize(
    ("model", "dimensions"),
    [
        ("amazon.titan-embed-text-v1", {}),
        (TITAN, {"dimensions": 512}),
        (COHERE, {}),
        ("eu.cohere.embed-v4:0", {"output_dimension": 512}),
    ],
)
async def test_the_configured_dimensions_are_sent_to_models_that_let_callers_choose_them(
    model: str, dimensions: dict[str, int]
) -> None:
    row = [1.0] * 512
    upstream = Upstream(json_answer({"embedding": row, "embeddings": [row]}))
    config = backend("bedrock", supported_models=("vectors",), model_names={"vectors": model})
    router = Router(
        LlmConfig(backends=(config,)),
        [ModelConfig(name="vectors", kind="embedding", dimensions=512, context_window=512)],
        lambda _: KEY,
        provider_of=lambda backend_config, key: Bedrock(backend_config, KEY, transport=upstream.transport),
    )
    reply = await router.embed(EmbeddingRequest("vectors", ("a",)), context())
    assert reply.dimensions == 512
    assert {name: value for name, value in upstream.body.items() if "dimension" in name} == dimensions


def embed_letter_counts(request: httpx.Request) -> httpx.Response:
    """Return a vector for each text: 1 + its number of letters, and 1 + its number of other characters."""
    texts = cast(list[str], json.loads(request.content)["texts"])
    assert 0 < len(texts) <= 96
    rows = [[sum(map(str.isalpha, text)) + 1.0, sum(not letter.isalpha() for letter in text) + 1.0] for text in texts]
    return httpx.Response(200, json={"embeddings": {"float": rows}})


@given(
    st.lists(st.builds(lambda letters, times: letters * times, st.text("aä€😀 ", max_size=3), st.integers(0, 3000)), max_size=4)
)
def test_long_texts_are_sent_in_windows_of_1024_bytes_and_get_a_unit_vector(texts: list[str]) -> None:
    windows: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        windows.extend(json.loads(request.content)["texts"])
        return embed_letter_counts(request)

    async def embed_texts() -> EmbeddingReply:
        provider = Bedrock(backend("bedrock"), KEY, transport=httpx.MockTransport(answer))
        return await provider.embed(EmbeddingRequest(COHERE, tuple(texts)), context())

    reply = anyio.run(embed_texts)
    assert "".join(windows) == "".join(texts)
    assert all(len(window.encode()) <= 1024 for window in windows)
    assert reply.count == len(texts)
    for text, row in zip(texts, reply.rows(), strict=True):
        if len(text.encode()) > 1024:
            assert math.hypot(*row) == pytest.approx(1)


async def test_windows_are_sent_in_batches_of_96_and_their_mean_is_the_vector_of_the_text() -> None:
    sizes: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sizes.append(len(json.loads(request.content)["texts"]))
        return embed_letter_counts(request)

    provider = Bedrock(backend("bedrock"), KEY, transport=httpx.MockTransport(answer))
    reply = await provider.embed(EmbeddingRequest(COHERE, ("a" * 2048,) * 96), context())
    assert (sizes, reply.count) == ([96, 96], 96)
    # Each text has two equal windows of 1024 letters. Their mean is normalized.
    expected = [1025 / math.hypot(1025, 1), 1 / math.hypot(1025, 1)]
    assert reply.rows()[0] == pytest.approx(expected)


async def test_a_model_that_is_not_from_titan_or_cohere_raises_an_auth_error() -> None:
    upstream = Upstream(json_answer({}))
    with pytest.raises(BackendAuthError, match="Titan's and Cohere's"):
        await embed(upstream, "amazon.nova-2-multimodal-embeddings-v1:0", "a")
    assert upstream.requests == []


async def test_a_text_that_is_too_long_raises_context_length() -> None:
    error = json_answer(
        {"message": "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9000"},
        400,
        x_amzn_errortype="ValidationException",
    )
    with pytest.raises(BackendContextLength):
        await embed(Upstream(error), TITAN, "a")


@pytest.mark.parametrize(
    ("model", "payload"),
    [
        (TITAN, {}),
        (TITAN, {"embedding": ["x"]}),
        (TITAN, {"embedding": None}),
        (COHERE, {"embeddings": [[1.0]]}),
        (COHERE, {"embeddings": {"int8": [[1], [2]]}}),
        (COHERE, {"embeddings": "x"}),
    ],
)
async def test_malformed_vectors_are_a_failure(model: str, payload: Payload) -> None:
    with pytest.raises(BackendUnavailable):
        await embed(Upstream(json_answer(payload)), model, "a", "b")


async def test_windows_with_vectors_of_different_lengths_are_a_failure() -> None:
    with pytest.raises(BackendUnavailable):
        await embed(Upstream(json_answer({"embeddings": [[1.0], [1.0, 2.0]]})), COHERE, "a" * 2000)


@pytest.mark.parametrize(("first", "second"), [(1e308, 1e308), (math.inf, -math.inf)])
async def test_windows_whose_mean_vector_is_not_finite_are_a_failure(first: float, second: float) -> None:
    upstream = Upstream(json_answer({"embeddings": [[first], [second]]}))
    with pytest.raises(BackendUnavailable):
        await embed(upstream, COHERE, "x" * 1500)
