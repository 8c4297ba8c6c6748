"""Inject each fault into each AWS call of a request for an upload. After a retry there is one upload."""

import secrets
from functools import partial

import httpx
import pytest

from spass.testing.faults import Fault, FaultPlan
from tests.integration.web.retrying_client import Clock, first_try, retried

pytestmark = pytest.mark.anyio

BODY = {"filename": "notes.md", "content_type": "text/markdown", "size": 100}
WHO = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}


async def ask(client: httpx.AsyncClient, index: str) -> httpx.Response:
    return await client.post(f"/a1/rag/indices/{index}/uploads", json=BODY, headers=WHO | {"Idempotency-Key": index})


def new_index() -> str:
    return f"index-{secrets.token_hex(6)}"


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_retried_request_creates_one_upload_with_a_fault_in_any_call(
    client: httpx.AsyncClient, clock: Clock, fault: Fault
) -> None:
    plan = FaultPlan()
    counted = await first_try(partial(ask, client, new_index()), plan)
    assert counted is not None
    assert counted.status_code == 200
    for point, call in enumerate(plan.calls):
        where = f"{fault} at {point} ({call.operation})"
        index = new_index()
        first = await first_try(partial(ask, client, index), FaultPlan(fault, at=point))
        again = await retried(partial(ask, client, index), clock)
        assert again.status_code == 200, (where, again.text)
        if first is not None and first.status_code == 200:
            assert again.json() == first.json(), where
            assert again.headers["Idempotency-Replayed"] == "true", where
        listed = await client.get(f"/a1/rag/indices/{index}/uploads", headers=WHO)
        assert [upload["id"] for upload in listed.json()["uploads"]] == [again.json()["upload_id"]], where
