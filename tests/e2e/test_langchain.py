"""Run LangChain's standard suites (``langchain-tests``) for chat models and embeddings through a running gateway.

``DEVIATIONS`` lists the tests that fail here, with reasons. ``CLIENT_OPTIONS`` are the options that LangChain's embeddings need.
The unit suites are not run: they create clients, but send no requests.
"""

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from openai import BadRequestError, OpenAI

from local.home import ROOT
from tests.e2e.conftest import Gateway
from tests.e2e.scripted_gateway import scripted_site
from tests.e2e.sites import share

TOKEN: Final = "langchain-token"
CHAT: Final = "script-chat"
OTHER_CHAT: Final = "script-chat-2"
EMBEDDING: Final = "script-embedding"
PICTURE: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
)
"""A PNG of one pixel. It replaces a picture that the suite downloads."""

DEVIATIONS: Final[dict[str, str]] = {
    "test_image_tool_message": "OpenAI's chat takes texts from tools; so does the gateway",
    "test_pdf_inputs": "files are refused: the gateway takes texts and pictures",
    "test_pdf_tool_message": "files are refused: the gateway takes texts and pictures",
    "test_audio_inputs": "audio is refused: the gateway takes texts and pictures",
}
"""Tests that fail here, with reasons. If one of them passes, the run fails and its entry must be removed."""

CLIENT_OPTIONS: Final[dict[str, Any]] = {"check_embedding_ctx_length": False, "chunk_size": 256}
"""Options without which the gateway refuses the requests of ``OpenAIEmbeddings``.

Without the first, it sends token ids instead of texts, which only OpenAI's own models can read. Without the second, it sends 1000
texts in a request.
"""

# Warnings that LangChain itself causes: an unexpected class in its answers, pydantic 1, and clients left open.
_LANGCHAIN_WARNINGS: Final = (
    "ignore:Pydantic serializer warnings",
    "ignore:Received a Pydantic BaseModel V1 schema",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

pytestmark = [pytest.mark.anyio, *map(pytest.mark.filterwarnings, _LANGCHAIN_WARNINGS)]


share(scripted_site("langchain", TOKEN, [CHAT, OTHER_CHAT], [EMBEDDING]))


@pytest.fixture(autouse=True)
def client_environment(gateway: Gateway, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure LangChain by two environment variables, as the operator of an existing program would."""
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{gateway.url}/v1")
    monkeypatch.setattr(httpx, "get", lambda url, **_: httpx.Response(200, content=PICTURE))
    if reason := DEVIATIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(autouse=True)
def collected_clients() -> Iterator[None]:
    """Collect the clients that LangChain left open, whose warnings would fail the test during which Python collects them."""
    yield
    gc.collect()


@pytest.fixture
def vcr() -> SimpleNamespace:
    """Return no recorded answers, so that ``test_stream_time`` sends a request."""
    return SimpleNamespace(responses=[])


@pytest.fixture
def benchmark() -> None:
    """Replace the benchmark fixture of the suite. ``bench/`` measures the gateway's latency."""


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # Connections must not outlive an answer: each async test has its own event loop, and LangChain does not close clients.
        return {"model": CHAT, "stream_usage": True, "max_retries": 0, "default_headers": {"Connection": "close"}}

    # All features are enabled, so that DEVIATIONS lists each one that the gateway does not support.
    supports_json_mode = True
    supports_model_override = True
    supports_image_inputs = True
    supports_image_urls = True
    supports_image_tool_message = True
    supports_pdf_inputs = True
    supports_pdf_tool_message = True
    supports_audio_inputs = True
    supports_anthropic_inputs = True
    enable_vcr_tests = True

    @property
    def model_override_value(self) -> str:
        return OTHER_CHAT


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": EMBEDDING, **CLIENT_OPTIONS, "default_headers": {"Connection": "close"}}


def test_token_ids_are_refused_and_the_error_advises_to_send_text() -> None:
    with pytest.raises(BadRequestError, match="lists of token numbers are not supported; send text"):
        OpenAI().embeddings.create(model=EMBEDDING, input=[[1, 2, 3]])


def test_embeddings_of_many_texts_work_with_the_options_of_the_page() -> None:
    page = (ROOT / "docs" / "langchain.md").read_text(encoding="utf-8")
    assert all(f"{name}={value}" in page for name, value in CLIENT_OPTIONS.items())
    texts = [f"text {number}" for number in range(600)]
    assert len(OpenAIEmbeddings(model=EMBEDDING, **CLIENT_OPTIONS).embed_documents(texts)) == 600
    with pytest.raises(BadRequestError, match=r"at most 256 .* limits\.embedding_inputs"):
        OpenAIEmbeddings(model=EMBEDDING, check_embedding_ctx_length=False).embed_documents(texts)


def test_every_deviation_is_a_test_of_the_suites() -> None:
    assert set(DEVIATIONS) <= set(dir(ChatModelIntegrationTests)) | set(dir(EmbeddingsIntegrationTests))
