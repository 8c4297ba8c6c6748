"""The sweep removes exactly the bodies that were never committed."""

import time

import pytest

from spass.core.ids import SessionId
from spass.core.time import Deadline
from spass.sessions.record import overflow_key
from spass.sessions.sweep import UNCOMMITTED_SECONDS, sweep_bodies
from spass.store.overflow import Overflow
from tests.unit.sessions.conftest import SessionsHarness

pytestmark = pytest.mark.anyio

LATER = UNCOMMITTED_SECONDS + 60


async def run_sweep(harness: SessionsHarness, after: int) -> int:
    return await sweep_bodies(harness.scope().store, int(time.time()) + after, Deadline.after(60))


async def test_a_body_without_a_turn_is_removed_after_a_day(harness: SessionsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.sessions.record.BODY", Overflow("body", 0))
    sessions = [await harness.create() for _ in range(2)]
    for session in sessions:
        for n in range(20):
            await harness.say(session, f"question {n}")
    objects = harness.scope().store.objects
    committed = await objects.list_keys("sessions/")
    assert len(committed) == 40
    for session in (*sessions, SessionId("ses_gone")):
        await objects.put(overflow_key(session, "turn_lost"), b"{}")
    assert await run_sweep(harness, UNCOMMITTED_SECONDS - 60) == 0
    assert await run_sweep(harness, LATER) == 3
    assert await objects.list_keys("sessions/") == committed


async def test_bodies_older_than_the_lookback_are_not_checked(harness: SessionsHarness) -> None:
    await harness.scope().store.objects.put(overflow_key(SessionId("ses_1"), "turn_1"), b"{}")
    assert await run_sweep(harness, 9 * UNCOMMITTED_SECONDS) == 0
    assert await run_sweep(harness, 7 * UNCOMMITTED_SECONDS) == 1


async def test_bodies_of_other_tenants_are_not_removed(harness: SessionsHarness) -> None:
    other = harness.scope(tenant="demo-2").store
    await other.objects.put(overflow_key(SessionId("ses_1"), "turn_1"), b"{}")
    assert await run_sweep(harness, LATER) == 0
    assert len(await other.objects.list_keys("sessions/")) == 1
