"""Inject each fault into each AWS call of a request for an upload. After a retry there is one upload."""

import secrets
from functools import partial

import httpx
import pytest

from spass.testing.faults import Fault, FaultPlan
from tests.integration.web.retrying_client import Clock, retry, send_with_faults

pytestmark = pytest.mark.anyio

BODY = {"filename": "notes.md", "content_type": "text/markdown", "size": 100}
HEADERS = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}


async def create_upload(client: httpx.AsyncClient, index: str) -> httpx.Response:
    return await client.post(f"/a1/rag/indices/{index}/uploads", json=BODY, headers=HEADERS | {"Idempotency-Key": index})


def new_index() -> str:
    return f"index-{secrets.token_hex(6)}"


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_retried_request_creates_one_upload_with_a_fault_in_any_call(
    client: httpx.AsyncClient, clock: Clock, fault: Fault
) -> None:
    plan = FaultPlan()
    without_fault = await send_with_faults(partial(create_upload, client, new_index()), plan)
    assert without_fault is not None
    assert without_fault.status_code == 200
    for point, call in enumerate(plan.calls):
        where = f"{fault} at {point} ({call.operation})"
        index = new_index()
        first_response = await send_with_faults(partial(create_upload, client, index), FaultPlan(fault, at=point))
        response = await retry(partial(create_upload, client, index), clock)
        assert response.status_code == 200, (where, response.text)
        if first_response is not None and first_response.status_code == 200:
            assert response.json() == first_response.json(), where
            assert response.headers["Idempotency-Replayed"] == "true", where
        page = await client.get(f"/a1/rag/indices/{index}/uploads", headers=HEADERS)
        assert [upload["id"] for upload in page.json()["uploads"]] == [response.json()["upload_id"]], where
