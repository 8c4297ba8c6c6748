"""PATCH a document over HTTP with faults and with concurrent writers. The stored vector always belongs to the stored text."""

import asyncio
import secrets
from functools import partial
from typing import Any

import httpx
import pytest

from spass.aws.clients import Aws
from spass.testing.faults import Fault, FaultPlan
from tests.integration.web.retrying_client import Clock, retry, send_with_faults
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


HEADERS = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
OLD = {"id": "a", "text": "Der Mond ist aufgegangen.", "metadata": {"n": 1}}
NEW = {"text": "Die Sonne geht unter.", "metadata": {"n": 2}}


async def create_index(client: httpx.AsyncClient) -> str:
    """Create an index with the documents a and b. Return its id."""
    index = f"index-{secrets.token_hex(6)}"
    body = {"documents": [OLD, {"id": "b", "text": "Etwas anderes."}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=HEADERS)).raise_for_status()
    return index


async def patch(client: httpx.AsyncClient, index: str, body: Any) -> httpx.Response:
    return await client.patch(f"/a1/rag/indices/{index}/documents/a", json=body, headers=HEADERS)


async def read_document(client: httpx.AsyncClient, index: str) -> Any:
    """Return the document a. Assert that a query for its text has a score of 1: its vector is the vector of its text."""
    document = (await client.get(f"/a1/rag/indices/{index}/documents/a", headers=HEADERS)).json()
    query = {"query": document["text"], "top_k": 1}
    (hit,) = (await client.post(f"/a1/rag/indices/{index}/query", json=query, headers=HEADERS)).json()["results"]
    assert (hit["id"], hit["score"], hit["metadata"]) == ("a", 1.0, document["metadata"])
    return document


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("body", [NEW, {"metadata": NEW["metadata"]}], ids=["text and metadata", "metadata"])
async def test_the_document_is_the_old_or_the_new_one_after_a_fault_in_any_call(
    client: httpx.AsyncClient, clock: Clock, fault: Fault, body: dict[str, Any]
) -> None:
    plan = FaultPlan()
    without_fault = await send_with_faults(partial(patch, client, await create_index(client), body), plan)
    assert without_fault is not None
    assert without_fault.status_code == 200
    new = {"text": OLD["text"], **body}
    old = {name: OLD[name] for name in new}
    for point, call in enumerate(plan.calls):
        where = f"{fault} at {point} ({call.operation})"
        index = await create_index(client)
        first_response = await send_with_faults(partial(patch, client, index, body), FaultPlan(fault, at=point))
        assert first_response is None or first_response.status_code in (200, 503), (where, first_response.text)
        document = await read_document(client, index)
        is_success = first_response is not None and first_response.status_code == 200
        assert {name: document[name] for name in new} in ([new] if is_success else [old, new]), where
        response = await retry(partial(patch, client, index, body), clock)
        assert response.status_code == 200, (where, response.text)
        assert await read_document(client, index) == response.json(), where
        assert {name: response.json()[name] for name in new} == new, where


async def test_concurrent_writers_never_store_a_text_with_the_vector_of_another_text(client: httpx.AsyncClient) -> None:
    index = await create_index(client)
    texts = [f"Satz Nummer {number}: {word}." for number, word in enumerate(("Haus", "Baum", "Fluss", "Berg"))]

    async def patch_text(text: str) -> None:
        assert (await patch(client, index, {"text": text})).status_code == 200

    async def patch_metadata(number: int) -> None:
        assert (await patch(client, index, {"metadata": {"n": number}})).status_code == 200

    async def append(text: str) -> None:
        body = {"documents": [{"id": "a", "text": text, "metadata": {"appended": True}}]}
        answer = await client.post(f"/a1/rag/indices/{index}/documents/append", json=body, headers=HEADERS)
        assert answer.status_code == 200

    rounds, writes_per_round = 3, 10
    for _ in range(rounds):
        writes = [*map(patch_text, texts), *map(patch_metadata, range(4)), append("Ganz neu."), append("Noch einmal neu.")]
        assert len(writes) == writes_per_round
        await asyncio.gather(*writes)
        assert (await read_document(client, index))["text"] in {*texts, "Ganz neu.", "Noch einmal neu."}
    summary = (await client.get(f"/a1/rag/indices/{index}", headers=HEADERS)).json()
    assert (summary["doc_count"], summary["version"]) == (2, 1 + rounds * writes_per_round), "each write is one version"
