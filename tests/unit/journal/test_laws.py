"""Law: cut anywhere and followed on any worker, the events of a stream are the same, none missing, none twice.

The table fails in random intervals, for the writer and for the followers. The turn may move to a successor, end or die.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from spass.core.errors import StorageUnavailable, TurnLost
from spass.core.ids import TenantId
from spass.journal.frames import EventId, Frame
from spass.journal.head import StreamState, read_head
from spass.store.invocation import CALL_PLAN, ServiceCall
from spass.store.swap import commit
from spass.testing.aws import MemoryAws
from spass.testing.faults import Fault, inject
from tests.unit.journal.conftest import DIGEST, EPOCH, SUCCESSOR, DirectCalls, Stream, numbered, step, token, virtual_now
from tests.unit.virtual_time import VirtualLoop

LAST = [step("complete"), step("done")]
ERROR = [step("error"), step("failed")]
FAULTS = st.sampled_from([Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT, Fault.REPEATED])


class End(Enum):
    COMMITS = auto()
    FAILS = auto()
    DIES = auto()


@dataclass(frozen=True, slots=True)
class Outage:
    """An interval of seconds since the claim, in which every call of a process fails in one way."""

    start: float
    seconds: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class Reader:
    """A client that reads from event ``after`` on. Its connection is cut after each of ``cuts`` seconds."""

    start: float
    after: int
    cuts: Sequence[float]
    outages: Sequence[Outage]


@dataclass(frozen=True, slots=True)
class Script:
    """A turn: frames, each after a pause in seconds. Frame number ``moves_at`` is the first one after a compaction."""

    frames: Sequence[tuple[float, Frame]]
    moves_at: int
    end: End
    outages: Sequence[Outage]
    readers: Sequence[Reader]


@dataclass
class OutageCalls(DirectCalls):
    """The calls of one process."""

    outages: Sequence[Outage] = field(default_factory=tuple)
    began: float = field(default_factory=virtual_now)

    def next_fault(self, call: ServiceCall) -> Fault | None:
        super().next_fault(call)
        now = virtual_now() - self.began
        return next((outage.fault for outage in self.outages if outage.start <= now < outage.start + outage.seconds), None)


SECONDS = st.floats(0, 12)
OUTAGES = st.lists(st.builds(Outage, SECONDS, st.floats(0, 3), FAULTS), max_size=3)
FRAMES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.5]), st.sampled_from([token("a"), token("b"), step("s"), token("x" * 5000)])),
    max_size=25,
)
READERS = st.builds(Reader, SECONDS, st.integers(0, 30), st.lists(st.floats(0, 4), max_size=4), OUTAGES)
SCRIPTS = st.builds(Script, FRAMES, st.integers(0, 12), st.sampled_from(End), OUTAGES, st.lists(READERS, min_size=1, max_size=3))


async def run_worker(stream: Stream, script: Script) -> None:
    """Run the turn on a worker of its own."""
    CALL_PLAN.set(OutageCalls(outages=script.outages))
    claimed = await stream.claim()
    writer = stream.writer(claimed)
    running = asyncio.create_task(writer.run())
    for number, (pause, frame) in enumerate(script.frames):
        await asyncio.sleep(pause)
        if number == script.moves_at:
            writer.continue_in(SUCCESSOR)
        stream.frames.append(frame)
    if script.end is End.DIES:
        running.cancel()
        await asyncio.wait({running})
        return
    is_committed = False
    if script.end is End.COMMITS:
        with suppress(StorageUnavailable):
            is_committed = not await commit(stream.store, await writer.final_writes(LAST))
    if not is_committed:
        await writer.fail(ERROR)
    stream.frames.end()
    await running


async def follow_with_cuts(stream: Stream, reader: Reader) -> tuple[list[tuple[EventId, Frame]], bool]:
    """Return what a client gets that resumes after each cut, and whether the turn was lost."""
    await asyncio.sleep(reader.start)
    CALL_PLAN.set(OutageCalls(outages=reader.outages))
    events: list[tuple[EventId, Frame]] = []
    cuts, after = [*reader.cuts, 600.0], EventId(1, reader.after) if reader.after else None
    while True:
        try:
            follower = await stream.follow(after)
            if follower.is_over:
                return events, False
            async for event_id, frame in follower.frames(cuts.pop(0) if len(cuts) > 1 else cuts[0]):
                events.append((event_id, frame))
                after = event_id
        except StorageUnavailable:
            await asyncio.sleep(1)
        except TurnLost:
            return events, True


async def play(script: Script) -> None:
    aws = MemoryAws(clock=lambda: EPOCH)
    with inject(DirectCalls()) as plan:
        assert isinstance(plan, DirectCalls)
        stream = Stream(aws.for_tenant(TenantId("demo")), aws, plan)
        await stream.create_session()
        await stream.create_session(SUCCESSOR)
        try:
            # The claim is in the table when the followers start.
            worker = asyncio.create_task(run_worker(stream, script))
            while await read_head(stream.store, DIGEST) is None and not worker.done():
                await asyncio.sleep(0.1)
            readers = [asyncio.create_task(follow_with_cuts(stream, reader)) for reader in script.readers]
            await worker
        except StorageUnavailable:
            return  # the claim failed, so there is no stream
        results = await asyncio.gather(*readers)
        head = await read_head(stream.store, DIGEST)
    assert head is not None
    event(f"{head.state}, {'moved' if head.successor else 'not moved'}")
    ends = {StreamState.DONE: LAST, StreamState.FAILED: ERROR, StreamState.RUNNING: []}
    expected = numbered([*(frame for _, frame in script.frames), *ends[head.state]])
    for reader, (events, is_lost) in zip(script.readers, results, strict=True):
        assert is_lost == (head.state is StreamState.RUNNING)
        if is_lost:
            assert events == expected[reader.after :][: len(events)]
        else:
            assert events == expected[reader.after :]


@given(SCRIPTS)
def test_every_follower_reads_the_same_events_none_missing_none_twice(script: Script) -> None:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        patch.setattr("spass.store.table.now_s", lambda: int(virtual_now()))
        runner.run(play(script))
