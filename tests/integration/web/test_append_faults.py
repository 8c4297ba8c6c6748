"""Inject each fault into each AWS call of an append over HTTP. After a retry the documents are appended once."""

import secrets
from collections.abc import Mapping
from functools import partial

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


BODY = {"documents": [{"id": "a", "text": "neu"}, {"id": "b", "text": "dazu"}]}
HEADERS = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}


async def create_index(client: httpx.AsyncClient) -> str:
    """Create an index with one document, which the append replaces. Return its id."""
    index = f"index-{secrets.token_hex(6)}"
    body = {"documents": [{"id": "a", "text": "alt"}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=HEADERS)).raise_for_status()
    return index


async def append(client: httpx.AsyncClient, index: str) -> httpx.Response:
    return await client.post(f"/a1/rag/indices/{index}/documents/append", json=BODY, headers=HEADERS | {"Idempotency-Key": index})


async def read_index(client: httpx.AsyncClient, index: str) -> tuple[int, Mapping[str, str]]:
    """Return the version of the index, and its texts by id."""
    summary = await client.get(f"/a1/rag/indices/{index}", headers=HEADERS)
    page = await client.get(f"/a1/rag/indices/{index}/documents", headers=HEADERS)
    return summary.json()["version"], {document["id"]: document["text"] for document in page.json()["documents"]}


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_retried_request_appends_once_with_a_fault_in_any_call(
    client: httpx.AsyncClient, clock: Clock, fault: Fault
) -> None:
    plan = FaultPlan()
    index = await create_index(client)
    without_fault = await send_with_faults(partial(append, client, index), plan)
    assert without_fault is not None
    assert without_fault.status_code == 200
    calls = [f"{call.service}:{call.operation}" for call in plan.calls]
    assert {"dynamodb:PutItem", "dynamodb:TransactWriteItems", "s3:PutObject"} < set(calls)
    assert calls.count("dynamodb:PutItem") == 1, "only the claim: the transaction of the swap stores the answer"
    assert calls.count("dynamodb:TransactWriteItems") == 2, "the audit record of the embedding, and the swap"
    claim_call = calls.index("dynamodb:PutItem")
    for point, name in enumerate(calls):
        where = f"{fault} at {point} ({name})"
        index = await create_index(client)
        first_response = await send_with_faults(partial(append, client, index), FaultPlan(fault, at=point))
        start = clock.seconds
        response = await retry(partial(append, client, index), clock)
        assert response.status_code == 200, (where, response.text)
        expected = {"index_id": index, "doc_count": 2, "ingested": 2, "replaced": 1, "version": 2}
        assert response.json() == expected, where
        if first_response is not None and first_response.status_code == 200:
            assert first_response.json() == expected, where
            assert response.headers["Idempotency-Replayed"] == "true", where
        else:
            assert first_response is None or first_response.status_code in (409, 503), (where, first_response.text)
            if first_response is not None and point != claim_call:
                assert clock.seconds == start, f"{where}: the retry must succeed without waiting"
        assert await read_index(client, index) == (2, {"a": "neu", "b": "dazu"}), where
