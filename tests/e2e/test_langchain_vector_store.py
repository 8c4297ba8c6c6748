"""Run LangChain's standard suite for vector stores on ``/a1/rag``, with the adapter of ``docs/langchain.md``."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import httpx
import pytest
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from tests.e2e.conftest import ROOT, Gateway

_, ADAPTER, EXAMPLE = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "langchain.md").read_text(encoding="utf-8"))

pytestmark = pytest.mark.anyio


def adapter() -> Any:
    """Return the class that the page shows."""
    names: dict[str, Any] = {"__name__": "docs.langchain"}
    exec(compile(ADAPTER, "docs/langchain.md", "exec"), names)
    return names["SpassVectorStore"]


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, gateway: Gateway) -> Iterator[VectorStore]:
        with gateway.client() as client:
            store: VectorStore = adapter()(client, f"langchain-{uuid4().hex[:8]}")
            yield store
            store.delete()


def test_scores_filters_and_batches_work(gateway: Gateway) -> None:
    with gateway.client() as client:
        texts = [f"Entry number {number}" for number in range(300)]
        store = adapter().from_texts(texts, None, [{"n": number} for number in range(300)], client=client, index="langchain-many")
        [(document, score)] = store.similarity_search_with_score("Entry number 299", k=1, filter={"n": {"$gte": 290}})
        assert document.page_content == "Entry number 299"
        assert score == pytest.approx(1)
        assert store.similarity_search_with_relevance_scores("Entry number 299", k=1)[0][1] == pytest.approx(1)
        store.delete()
        assert store.similarity_search("Entry") == []


@pytest.mark.parametrize("key", ["notes.md#1", "...", "a/b", "a?b", "%2e%2e", "ü"])
def test_an_id_stays_one_segment_of_the_path(key: str) -> None:
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return httpx.Response(404, json={"error": {"code": "document_not_found"}})

    with httpx.Client(base_url="http://gateway.test", transport=httpx.MockTransport(answer)) as client:
        store = adapter()(client, "notes")
        store.delete([key])
        assert store.get_by_ids([key]) == []
    assert len(paths) == 2
    for path in paths:
        parent, _, segment = path.rpartition("/")
        assert parent == "/a1/rag/indices/notes/documents"
        assert "?" not in segment
        assert unquote(segment) == key


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_an_id_that_is_not_a_valid_path_segment_is_refused(gateway: Gateway, key: str) -> None:
    with gateway.client() as client:
        store = adapter().from_texts(["kept"], None, client=client, index=f"langchain-dots-{len(key)}")
        for method in (store.delete, store.get_by_ids):
            with pytest.raises(ValueError, match="id"):
                method([key])
        assert [document.page_content for document in store.similarity_search("kept")] == ["kept"]


def test_an_error_shows_the_message_of_the_gateway(gateway: Gateway) -> None:
    with gateway.client() as client, pytest.raises(httpx.HTTPStatusError, match="8192"):
        adapter()(client, "langchain-errors").add_texts(["x" * 9000])


def test_a_normalized_document_path_does_not_delete_the_index(gateway: Gateway) -> None:
    """curl, urllib3 and Node normalize ``…/langchain-shortened/documents/..`` to this path."""
    with gateway.client() as client:
        store = adapter().from_texts(["kept"], None, client=client, index="langchain-shortened")
        answer = client.delete("/a1/rag/indices/langchain-shortened/")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
        assert [document.page_content for document in store.similarity_search("kept")] == ["kept"]


def test_the_example_of_the_page_runs(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    example = EXAMPLE.replace("http://127.0.0.1:3000", gateway.url).replace("berlin-parks", "langchain-example")
    exec(compile(ADAPTER + example, "docs/langchain.md", "exec"), {"__name__": "docs.langchain"})
    assert "Tiergarten" in capsys.readouterr().out
