"""A request that comes twice is done once."""

import asyncio

import pytest

from spass.aws import idempotency
from spass.aws.clients import TenantStore
from spass.aws.idempotency import Claim, IdempotentRequest, StoredAnswer, acquire
from spass.aws.leases import LEASE_SECONDS, RETRY_SECONDS, LeaseLost
from spass.core.errors import IdempotencyInProgress, IdempotencyKeyReused
from spass.core.time import now_s
from spass.testing.faults import Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio
REQUEST = IdempotentRequest("digest", "body")
ANSWER = StoredAnswer({"text": "ünï", "n": 1.5, "list": [None, True]}, {"SPASS-Cost-Eur": "0.1"})


async def claimed(store: TenantStore) -> Claim:
    claim = await acquire(store, REQUEST)
    assert isinstance(claim, Claim)
    return claim


async def test_of_eight_at_once_one_runs_and_the_others_are_told_to_wait(store: TenantStore) -> None:
    results = await asyncio.gather(*(acquire(store, REQUEST) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, Claim) for result in results) == 1
    others = [result for result in results if isinstance(result, IdempotencyInProgress)]
    assert len(others) == 7
    assert all(other.retry_after == RETRY_SECONDS for other in others)


@pytest.mark.parametrize("size", [1, 500_000])
async def test_a_finished_request_is_answered_again(store: TenantStore, size: int) -> None:
    claim = await claimed(store)
    answer = StoredAnswer({**ANSWER.body, "long": "é" * size}, ANSWER.headers)
    await claim.complete(answer)
    assert await acquire(store, REQUEST) == answer
    assert await idempotency.read(store, REQUEST) == answer


async def test_a_key_with_another_body_is_refused_while_running_and_after(store: TenantStore) -> None:
    other = IdempotentRequest(REQUEST.digest, "another body")
    claim = await claimed(store)
    with pytest.raises(IdempotencyKeyReused):
        await acquire(store, other)
    await claim.complete(ANSWER)
    with pytest.raises(IdempotencyKeyReused):
        await acquire(store, other)
    with pytest.raises(IdempotencyKeyReused):
        await idempotency.read(store, other)


async def test_a_failed_request_may_try_again(store: TenantStore) -> None:
    claim = await claimed(store)
    await claim.release()
    await claimed(store)


async def test_a_dead_owners_claim_falls_free_and_its_ghost_cannot_answer(
    store: TenantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_s()
    ghost = await claimed(store)
    monkeypatch.setattr("spass.aws.idempotency.now_s", lambda: now + LEASE_SECONDS + 1)
    heir = await claimed(store)
    with pytest.raises(LeaseLost):
        await ghost.complete(ANSWER)
    await ghost.release()  # must not free the heir's
    await heir.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER


async def test_completing_twice_after_a_lost_reply_is_no_error(store: TenantStore) -> None:
    claim = await claimed(store)
    await claim.complete(ANSWER)
    await claim.complete(ANSWER)


async def test_a_claim_whose_own_write_was_repeated_is_still_a_claim(store: TenantStore) -> None:
    """botocore sends a write again when its reply is lost; the second meets the first's effect."""
    with inject(FaultPlan(Fault.REPEATED)):
        claim = await claimed(store)
    with inject(FaultPlan(Fault.REPEATED)):
        await claim.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER


@pytest.mark.parametrize(("hours", "kept"), [(23.99, True), (24.01, False)])
async def test_an_answer_is_kept_for_a_day(store: TenantStore, monkeypatch: pytest.MonkeyPatch, hours: float, kept: bool) -> None:
    await (await claimed(store)).complete(ANSWER)
    later = now_s() + int(hours * 3600)
    monkeypatch.setattr("spass.aws.idempotency.now_s", lambda: later)
    monkeypatch.setattr("spass.aws.table.now_s", lambda: later)
    assert isinstance(await acquire(store, REQUEST), StoredAnswer) == kept


async def test_one_lost_reply_does_not_lose_an_answer_that_was_paid_for(store: TenantStore) -> None:
    claim = await claimed(store)
    for fault in (Fault.LOST_REPLY, Fault.THROTTLE):
        with inject(FaultPlan(fault)):
            await claim.complete(ANSWER)
    assert await acquire(store, REQUEST) == ANSWER
