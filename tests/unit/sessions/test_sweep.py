"""Bodies of turns that were never committed are removed, and no other."""

import time

import pytest

from spass.core.ids import SessionId
from spass.core.time import Deadline
from spass.sessions.record import overflow_key
from spass.sessions.sweep import UNCOMMITTED_SECONDS, sweep_bodies
from tests.unit.sessions.conftest import House

pytestmark = pytest.mark.anyio

LATER = UNCOMMITTED_SECONDS + 60


async def swept(house: House, after: int) -> int:
    return await sweep_bodies(house.scope().store, int(time.time()) + after, Deadline.after(60))


async def test_a_body_without_a_turn_goes_after_a_day(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.sessions.record.INLINE_BYTES", 0)
    sessions = [await house.create() for _ in range(2)]
    for session in sessions:
        for n in range(20):
            await house.say(session, f"question {n}")
    objects = house.scope().store.objects
    kept = await objects.keys_under("sessions/")
    assert len(kept) == 40
    for session in (*sessions, SessionId("ses_gone")):
        await objects.put(overflow_key(session, "turn_lost"), b"{}")
    assert await swept(house, UNCOMMITTED_SECONDS - 60) == 0
    assert await swept(house, LATER) == 3
    assert await objects.keys_under("sessions/") == kept


async def test_what_many_sweeps_have_looked_at_is_not_looked_at_for_ever(house: House) -> None:
    await house.scope().store.objects.put(overflow_key(SessionId("ses_1"), "turn_1"), b"{}")
    assert await swept(house, 9 * UNCOMMITTED_SECONDS) == 0
    assert await swept(house, 7 * UNCOMMITTED_SECONDS) == 1


async def test_another_tenants_bodies_stay(house: House) -> None:
    other = house.scope(tenant="demo-2").store
    await other.objects.put(overflow_key(SessionId("ses_1"), "turn_1"), b"{}")
    assert await swept(house, LATER) == 0
    assert len(await other.objects.keys_under("sessions/")) == 1
