"""Test the renewal of a claim."""

import hashlib
from dataclasses import replace

import pytest

from spass.core.ids import TenantId, UserId
from spass.store.idempotency import Claim, IdempotentRequest, StoredResponse, acquire
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.testing.aws import MemoryAws
from tests.unit.idempotent_requests import idempotent_request

pytestmark = pytest.mark.anyio
REQUEST = idempotent_request("digest", "body")


@pytest.fixture
def store() -> TenantStore:
    return MemoryAws().for_tenant(TenantId("demo"))


async def acquired(store: TenantStore) -> Claim:
    claim = await acquire(store, REQUEST)
    assert isinstance(claim, Claim)
    return claim


async def test_renewing_a_completed_claim_does_not_report_it_as_lost(store: TenantStore) -> None:
    """Complete a claim in a transaction; the next renewal may come before the request ends."""
    claim = await acquired(store)
    answer = StoredResponse({"done": True}, {})
    await claim.complete(answer)
    await claim.renew()
    assert await acquire(store, REQUEST) == answer


async def test_renewing_a_lost_claim_fails(store: TenantStore) -> None:
    claim = await acquired(store)
    await claim.release()
    with pytest.raises(ConditionFailed):
        await claim.renew()
    other = await acquired(store)
    with pytest.raises(ConditionFailed):
        await claim.renew()
    await store.table.write(Put(other.key, {"state": "done", "owner": other.owner}))
    with pytest.raises(ConditionFailed):
        await claim.renew()


def test_the_digest_is_the_one_that_earlier_releases_stored() -> None:
    request = IdempotentRequest(TenantId("demo"), "demo-user", UserId("ana"), "POST", "/a1/agents/x/chat", "key-1", "body")
    parts = '["demo", "demo-user", "ana", "POST", "/a1/agents/x/chat", "key-1"]'
    assert request.digest == hashlib.sha256(parts.encode()).hexdigest()
    elsewhere = request.at("/a1/agents/x/sessions/ses_2/messages")
    assert (elsewhere.digest != request.digest, elsewhere.body_hash, elsewhere.key) == (True, "body", "key-1")
    assert replace(request, user=None).digest == hashlib.sha256(parts.replace('"ana"', "null").encode()).hexdigest()
