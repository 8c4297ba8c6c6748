"""PATCH over HTTP when calls go wrong and when others write: what is stored is one document, and its vector is its text's."""

import asyncio
import secrets
from functools import partial
from typing import Any

import httpx
import pytest

from spass.aws.clients import Aws
from spass.testing.faults import Fault, FaultPlan
from tests.integration.web.retrying_client import Clock, first_try, retried
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


WHO = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
OLD = {"id": "a", "text": "Der Mond ist aufgegangen.", "metadata": {"n": 1}}
NEW = {"text": "Die Sonne geht unter.", "metadata": {"n": 2}}


async def prepared(client: httpx.AsyncClient) -> str:
    index = f"index-{secrets.token_hex(6)}"
    body = {"documents": [OLD, {"id": "b", "text": "Etwas anderes."}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=WHO)).raise_for_status()
    return index


async def patch(client: httpx.AsyncClient, index: str, body: Any) -> httpx.Response:
    return await client.patch(f"/a1/rag/indices/{index}/documents/a", json=body, headers=WHO)


async def stored(client: httpx.AsyncClient, index: str) -> Any:
    """The document, once it is sure that a query for its text finds it and nothing nearer."""
    document = (await client.get(f"/a1/rag/indices/{index}/documents/a", headers=WHO)).json()
    query = {"query": document["text"], "top_k": 1}
    (found,) = (await client.post(f"/a1/rag/indices/{index}/query", json=query, headers=WHO)).json()["results"]
    assert (found["id"], found["score"], found["metadata"]) == ("a", 1.0, document["metadata"])
    return document


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("body", [NEW, {"metadata": NEW["metadata"]}], ids=["text and metadata", "metadata"])
async def test_whichever_call_goes_wrong_the_document_is_the_old_or_the_new_one(
    client: httpx.AsyncClient, clock: Clock, fault: Fault, body: dict[str, Any]
) -> None:
    plan = FaultPlan()
    counted = await first_try(partial(patch, client, await prepared(client), body), plan)
    assert counted is not None
    assert counted.status_code == 200
    after = {"text": OLD["text"], **body}
    for point, call in enumerate(plan.calls):
        where = f"{fault} at {point} ({call.operation})"
        index = await prepared(client)
        first = await first_try(partial(patch, client, index, body), FaultPlan(fault, at=point))
        assert first is None or first.status_code in (200, 503), (where, first.text)
        between = await stored(client, index)
        held = {name: between[name] for name in after}
        assert held == after if first is not None and first.status_code == 200 else held in (after, {n: OLD[n] for n in after})
        again = await retried(partial(patch, client, index, body), clock)
        assert again.status_code == 200, (where, again.text)
        assert await stored(client, index) == again.json(), where
        assert {name: again.json()[name] for name in after} == after, where


async def test_of_many_who_write_at_once_none_parts_a_text_from_its_vector(client: httpx.AsyncClient) -> None:
    index = await prepared(client)
    texts = [f"Satz Nummer {number}: {word}." for number, word in enumerate(("Haus", "Baum", "Fluss", "Berg"))]

    async def reword(text: str) -> None:
        assert (await patch(client, index, {"text": text})).status_code == 200

    async def relabel(number: int) -> None:
        assert (await patch(client, index, {"metadata": {"n": number}})).status_code == 200

    async def append(text: str) -> None:
        body = {"documents": [{"id": "a", "text": text, "metadata": {"appended": True}}]}
        answer = await client.post(f"/a1/rag/indices/{index}/documents/append", json=body, headers=WHO)
        assert answer.status_code == 200

    for _ in range(3):
        work = [*map(reword, texts), *map(relabel, range(4)), append("Ganz neu."), append("Noch einmal neu.")]
        await asyncio.gather(*work)
        assert (await stored(client, index))["text"] in {*texts, "Ganz neu.", "Noch einmal neu."}
    described = (await client.get(f"/a1/rag/indices/{index}", headers=WHO)).json()
    assert (described["doc_count"], described["version"]) == (2, 1 + 3 * 10)
