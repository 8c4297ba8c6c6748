"""All routes of a process share its caches."""

import secrets

import httpx
import pytest

from spass.testing.faults import FaultPlan, inject

pytestmark = pytest.mark.anyio

HEADERS = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}


async def test_a_delete_after_an_append_reads_the_ids_from_the_cache(client: httpx.AsyncClient) -> None:
    path = f"/a1/rag/indices/index-{secrets.token_hex(6)}/documents"
    body = {"documents": [{"id": "a", "text": "alt"}, {"id": "b", "text": "bleibt"}]}
    (await client.post(f"{path}/append", json=body, headers=HEADERS)).raise_for_status()
    with inject(FaultPlan()) as plan:
        assert (await client.delete(f"{path}/a", headers=HEADERS)).json() == {"deleted": True}
    assert [call.operation for call in plan.calls] == ["GetItem", "TransactWriteItems"]
