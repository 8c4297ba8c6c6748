"""Every AWS call of an append over HTTP goes wrong in every way; the client that sends it again has appended once."""

import secrets
from collections.abc import Mapping
from functools import partial

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


BODY = {"documents": [{"id": "a", "text": "neu"}, {"id": "b", "text": "dazu"}]}
WHO = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}


async def prepared(client: httpx.AsyncClient) -> str:
    """An index of one document that the append writes over."""
    index = f"index-{secrets.token_hex(6)}"
    body = {"documents": [{"id": "a", "text": "alt"}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=WHO)).raise_for_status()
    return index


async def append(client: httpx.AsyncClient, index: str) -> httpx.Response:
    return await client.post(f"/a1/rag/indices/{index}/documents/append", json=BODY, headers=WHO | {"Idempotency-Key": index})


async def stands(client: httpx.AsyncClient, index: str) -> tuple[int, Mapping[str, str]]:
    """The version of the index and its texts."""
    described = await client.get(f"/a1/rag/indices/{index}", headers=WHO)
    listed = await client.get(f"/a1/rag/indices/{index}/documents", headers=WHO)
    return described.json()["version"], {found["id"]: found["text"] for found in listed.json()["documents"]}


@pytest.mark.parametrize("fault", list(Fault))
async def test_whichever_call_goes_wrong_the_retried_request_has_appended_once(
    client: httpx.AsyncClient, clock: Clock, fault: Fault
) -> None:
    plan = FaultPlan()
    index = await prepared(client)
    counted = await first_try(partial(append, client, index), plan)
    assert counted is not None
    assert counted.status_code == 200
    points = [f"{call.service}:{call.operation}" for call in plan.calls]
    assert {"dynamodb:PutItem", "dynamodb:TransactWriteItems", "s3:PutObject"} < set(points)
    assert points.count("dynamodb:PutItem") == 1, "the claim: the answer is kept by the swap"
    assert points.count("dynamodb:TransactWriteItems") == 2, "the embedding's account and the swap"
    claiming = points.index("dynamodb:PutItem")
    for point, name in enumerate(points):
        where = f"{fault} at {point} ({name})"
        index = await prepared(client)
        first = await first_try(partial(append, client, index), FaultPlan(fault, at=point))
        before = clock.seconds
        again = await retried(partial(append, client, index), clock)
        assert again.status_code == 200, (where, again.text)
        wanted = {"index_id": index, "doc_count": 2, "ingested": 2, "replaced": 1, "version": 2}
        assert again.json() == wanted, where
        if first is not None and first.status_code == 200:
            assert first.json() == wanted, where
            assert again.headers["Idempotency-Replayed"] == "true", where
        else:
            assert first is None or first.status_code in (409, 503), (where, first.text)
            if first is not None and point != claiming:
                assert clock.seconds == before, f"{where}: who was told to try again is let in at once"
        assert await stands(client, index) == (2, {"a": "neu", "b": "dazu"}), where
