"""A request that arrives twice is carried out once."""

import asyncio
from dataclasses import replace

import pytest

from spass.core.errors import IdempotencyInProgress, IdempotencyKeyReused
from spass.core.time import now_s
from spass.store import idempotency
from spass.store.idempotency import Claim, StoredResponse, acquire
from spass.store.leases import LEASE_SECONDS, RETRY_SECONDS, LeaseLost
from spass.store.tenant_store import TenantStore
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.idempotent_requests import idempotent_request

pytestmark = pytest.mark.anyio
REQUEST = idempotent_request("digest", "body")
ANSWER = StoredResponse({"text": "ünï", "n": 1.5, "list": [None, True]}, {"SPASS-Cost-Eur": "0.1"})


async def acquire_claim(store: TenantStore) -> Claim:
    claim = await acquire(store, REQUEST)
    assert isinstance(claim, Claim)
    return claim


async def test_one_of_eight_concurrent_requests_runs_and_the_others_get_a_retry_time(store: TenantStore) -> None:
    results = await asyncio.gather(*(acquire(store, REQUEST) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, Claim) for result in results) == 1
    others = [result for result in results if isinstance(result, IdempotencyInProgress)]
    assert len(others) == 7
    assert all(other.retry_after == RETRY_SECONDS for other in others)


@pytest.mark.parametrize("size", [1, 500_000])
async def test_a_completed_request_gets_its_stored_answer(store: TenantStore, size: int) -> None:
    claim = await acquire_claim(store)
    answer = StoredResponse({**ANSWER.body, "long": "é" * size}, ANSWER.headers)
    await claim.complete(answer)
    assert await acquire(store, REQUEST) == answer
    assert await idempotency.read(store, REQUEST) == answer


async def test_a_key_with_another_body_is_refused_during_and_after_the_request(store: TenantStore) -> None:
    other = replace(REQUEST, body_hash="another body")
    claim = await acquire_claim(store)
    with pytest.raises(IdempotencyKeyReused):
        await acquire(store, other)
    await claim.complete(ANSWER)
    with pytest.raises(IdempotencyKeyReused):
        await acquire(store, other)
    with pytest.raises(IdempotencyKeyReused):
        await idempotency.read(store, other)


async def test_a_released_key_can_be_claimed_again(store: TenantStore) -> None:
    claim = await acquire_claim(store)
    await claim.release()
    await acquire_claim(store)


async def test_an_expired_claim_can_be_taken_over_and_its_old_owner_cannot_answer(
    store: TenantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_s()
    expired = await acquire_claim(store)
    monkeypatch.setattr("spass.store.idempotency.now_s", lambda: now + LEASE_SECONDS + 1)
    successor = await acquire_claim(store)
    with pytest.raises(LeaseLost):
        await expired.complete(ANSWER)
    await expired.release()  # must not release the claim of the new owner
    await successor.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER


async def test_a_claim_can_be_completed_twice(store: TenantStore) -> None:
    claim = await acquire_claim(store)
    await claim.complete(ANSWER)
    await claim.complete(ANSWER)


async def test_a_claim_succeeds_if_its_write_is_repeated(store: TenantStore) -> None:
    """botocore retries a write if its reply is lost. The retry then fails its condition, because the first write took effect."""
    with inject(FaultPlan(Fault.REPEATED)):
        claim = await acquire_claim(store)
    with inject(FaultPlan(Fault.REPEATED)):
        await claim.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER


@pytest.mark.parametrize(("hours", "is_stored"), [(23.99, True), (24.01, False)])
async def test_an_answer_is_stored_for_24_hours(
    store: TenantStore, monkeypatch: pytest.MonkeyPatch, hours: float, is_stored: bool
) -> None:
    await (await acquire_claim(store)).complete(ANSWER)
    later = now_s() + int(hours * 3600)
    monkeypatch.setattr("spass.store.idempotency.now_s", lambda: later)
    monkeypatch.setattr("spass.store.table.now_s", lambda: later)
    assert isinstance(await acquire(store, REQUEST), StoredResponse) == is_stored


async def test_an_answer_is_stored_despite_a_lost_reply_or_a_throttle(store: TenantStore) -> None:
    claim = await acquire_claim(store)
    for fault in (Fault.LOST_REPLY, Fault.THROTTLE):
        with inject(FaultPlan(fault)):
            await claim.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER
