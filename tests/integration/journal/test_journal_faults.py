"""Inject each fault into each AWS call of a streamed turn. Followers see its events without gaps, or a lost turn."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest

from spass.aws.clients import Aws
from spass.core.errors import SpassError, StorageUnavailable, TurnLost
from spass.core.ids import AgentName, SessionId, UserId, new_id
from spass.core.tasks import EventList
from spass.core.time import now_s
from spass.journal import follower, writer
from spass.journal.follower import follow
from spass.journal.frames import EventId, Frame
from spass.journal.head import StopState, StreamClaim, StreamHead, StreamState, claim, read_head, request_stop, stream_digest
from spass.journal.writer import JournalWriter
from spass.store import keys
from spass.store.leases import LEASE_SECONDS
from spass.store.swap import commit
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio
FRAMES = [Frame('"planning"'), Frame("a", '"', '"'), Frame('"executing"'), Frame('"moved"'), Frame("b", '"', '"')]
LAST = [Frame('"complete"'), Frame('"done"')]
ERROR = [Frame('"error"'), Frame('"failed"')]


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.001)
    monkeypatch.setattr(writer, "_LAST_RETRY_DELAYS", (0.0, 0.0))
    monkeypatch.setattr(follower, "FIRST_POLL_SECONDS", 0.001)


@dataclass(slots=True)
class StreamedTurn:
    """A stream of its own in two sessions, and the attempts to run it. ``now`` moves only when a test moves it."""

    store: TenantStore
    digest: str
    session: SessionId = field(default_factory=lambda: SessionId(new_id("ses")))
    successor: SessionId = field(default_factory=lambda: SessionId(new_id("ses")))
    now: float = field(default_factory=lambda: float(now_s()))

    @classmethod
    async def create(cls, store: TenantStore) -> "StreamedTurn":
        turn = cls(store, stream_digest(UserId("ana"), AgentName("plain"), new_id("msg")))
        for session in (turn.session, turn.successor):
            await store.table.write(Put(keys.session_head(store.tenant, session), {"user": "ana"}))
        return turn

    async def claim(self, owner: str) -> StreamClaim | StreamHead:
        return await claim(self.store, self.digest, "body", self.session, owner, self.now)

    async def head(self) -> StreamHead | None:
        return await read_head(self.store, self.digest)

    async def run(self, owner: str = "turn_1", *, fails: bool = False) -> bool:
        """Run the turn as its worker does: claim, flush, renew, move, commit. Return whether it was committed."""
        claimed = await self.claim(owner)
        assert isinstance(claimed, StreamClaim), "the first request must run the turn"
        frames = EventList[Frame]()
        journal = JournalWriter(claimed, frames, lambda: self.now)
        running = asyncio.create_task(journal.run())
        try:
            await claimed.use_session(self.session)
            for frame in FRAMES[:3]:
                frames.append(frame)
            await asyncio.sleep(0.003)
            await claimed.renew(self.now)
            journal.continue_in(self.successor)
            for frame in FRAMES[3:]:
                frames.append(frame)
            await asyncio.sleep(0.003)
            if not fails and not await commit(self.store, await journal.final_writes(LAST)):
                return True
            await journal.fail(ERROR)
        except (SpassError, ConditionFailed):
            await journal.fail(ERROR)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError, Crash):
                await running
        return False

    async def read(self) -> tuple[list[tuple[EventId, Frame]], bool]:
        """Return what a follower reads after the lease has expired, and whether it reports a lost turn."""
        self.now += LEASE_SECONDS
        reader = await follow(self.store, self.digest, None, lambda: self.now)
        events: list[tuple[EventId, Frame]] = []
        try:
            async for event in reader.frames(60):
                events.append(event)
        except TurnLost:
            return events, True
        assert reader.is_over
        return events, False

    async def check(self, *, is_committed: bool) -> None:
        """Check what followers read, and that a repeated request follows a recorded turn and runs any other one."""
        head = await self.head()
        if head is None:
            assert not is_committed
            assert isinstance(await self.claim("turn_2"), StreamClaim)
            return
        assert (head.state is StreamState.DONE) or not is_committed
        events, is_lost = await self.read()
        end = {StreamState.DONE: LAST, StreamState.FAILED: ERROR, StreamState.RUNNING: []}[head.state]
        assert is_lost == (head.state is StreamState.RUNNING)
        assert [event.n for event, _ in events] == list(range(1, len(events) + 1))
        frames = [frame for _, frame in events]
        appended = frames[: len(frames) - len(end)]
        assert frames == [*appended, *end]
        assert appended == FRAMES[: len(appended)]
        assert appended == FRAMES or head.state is not StreamState.DONE
        again = await self.claim("turn_2")
        if head.state is StreamState.DONE:
            assert again == head
        else:
            assert isinstance(again, StreamClaim)
            assert (again.head.attempt, again.head.session, again.previous_owner) == (2, head.last_session, "turn_1")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", list(Fault))
async def test_followers_see_no_gap_if_any_call_of_a_turn_fails(
    store: TenantStore, fault: Fault, times: int, fails: bool, record_property: Callable[[str, object], None]
) -> None:
    for point in count():
        turn = await StreamedTurn.create(store)
        is_committed = False
        with inject(FaultPlan(fault, point, times)) as plan, suppress(Crash, StorageUnavailable):
            is_committed = await turn.run(fails=fails)
        await turn.check(is_committed=is_committed)
        if len(plan.calls) <= point:
            assert is_committed == (not fails)
            break
        # Retries settle a single fault. (If a renewal or a claim fails twice, the turn ends.)
        assert is_committed or fails or times > 1 or fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
    assert point >= 6
    record_property("failed calls", point)


@pytest.mark.parametrize("earlier", ["none", "failed", "lost"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_stream_can_be_claimed_again_if_a_claim_fails(store: TenantStore, fault: Fault, times: int, earlier: str) -> None:
    for point in count():
        turn = await StreamedTurn.create(store)
        if earlier == "failed":
            await turn.run("turn_0", fails=True)
        elif earlier == "lost":
            await turn.claim("turn_0")
            turn.now += LEASE_SECONDS
        before = await turn.head()
        result: StreamClaim | StreamHead | None = None
        with inject(FaultPlan(fault, point, times)) as plan, suppress(Crash, StorageUnavailable):
            result = await turn.claim("turn_1")
        if result is not None:
            assert isinstance(result, StreamClaim)
            assert result.head == await turn.head()
            assert result.previous_owner == (before.owner if before else None)
            assert await turn.claim("turn_2") == result.head
            await result.undo()
            assert await turn.head() == before
        else:
            turn.now += LEASE_SECONDS
            again = await turn.claim("turn_2")
            assert isinstance(again, StreamClaim)
            assert again.head.session == (before.last_session if before else turn.session)
        if len(plan.calls) <= point:
            break
    assert point == (1 if earlier == "none" else 2)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_undo_or_a_stop_with_a_fault_has_its_whole_effect_or_none(store: TenantStore, fault: Fault, times: int) -> None:
    turn = await StreamedTurn.create(store)
    claimed = await turn.claim("turn_1")
    assert isinstance(claimed, StreamClaim)
    state: StopState | None = None
    with inject(FaultPlan(fault, times=times)), suppress(Crash, StorageUnavailable):
        state = await request_stop(store, turn.digest, turn.now)
    assert state in (None, StopState.CANCELLING)
    head = await turn.head()
    assert head is not None
    assert head.stop or state is None
    assert await claimed.is_stop_requested() == head.stop
    with inject(FaultPlan(fault, times=times)), suppress(Crash):
        await claimed.undo()
    assert await turn.head() in (None, head)
    turn.now += LEASE_SECONDS
    again = await turn.claim("turn_2")
    assert isinstance(again, StreamClaim)
    assert not again.head.stop
