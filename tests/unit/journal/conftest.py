"""Streams on a table in memory, in virtual time. No thread runs, so a test decides what happens when."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pytest

from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.tasks import EventList
from spass.journal.follower import Follower, follow
from spass.journal.frames import Chunk, EventId, Frame
from spass.journal.head import StreamClaim, StreamHead, claim, stream_digest
from spass.journal.writer import JournalWriter
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.testing.aws import MemoryAws
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.virtual_time import VirtualLoop, virtual_time

anyio_backend = virtual_time
T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
DIGEST: Final = stream_digest(UserId("ana"), AgentName("librarian"), "m-1")
SESSION: Final = SessionId("ses_a")
SUCCESSOR: Final = SessionId("ses_b")
FOLLOW_SECONDS: Final = 600.0


@dataclass
class DirectCalls(FaultPlan):
    """Make each AWS call in the loop, after ``latency`` seconds. ``faults`` maps the numbers of calls to faults. Calls of an
    operation in ``gates`` wait for its event."""

    in_threads = False

    latency: float = 0.005
    faults: Mapping[int, Fault] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if gate := self.gates.get(call.operation):
            await gate.wait()
        return await super().around(call, run)

    def fail_next(self, times: int, fault: Fault = Fault.THROTTLE) -> None:
        """Let the next ``times`` calls fail. The table calls twice before it raises an error."""
        self.faults = dict.fromkeys(range(len(self.calls), len(self.calls) + times), fault)

    def next_fault(self, call: ServiceCall) -> Fault | None:
        self.calls.append(call)
        return self.faults.get(len(self.calls) - 1)

    def operations(self, since: int = 0) -> list[str]:
        return [call.operation for call in self.calls[since:]]

    async def run_call(self, run: PendingCall[T]) -> T:
        await asyncio.sleep(self.latency)
        return await run()


def token(text: str) -> Frame:
    return Frame(text, '{"type":"token","content":"', '","step":1}')


def step(text: str) -> Frame:
    """Return a frame that is not a token's."""
    return Frame(f'{{"type":"status_update","detail":"{text}"}}')


@dataclass(slots=True)
class Stream:
    """A stream that a test claims, writes and follows. ``skew`` is added to the clock of the worker and of its followers."""

    store: TenantStore
    aws: MemoryAws
    plan: DirectCalls
    skew: float = 0.0
    frames: EventList[Frame] = field(default_factory=EventList)

    def now(self) -> float:
        return virtual_now() + self.skew

    async def claim_or_head(self, owner: str = "turn_1", body: str = "body") -> StreamClaim | StreamHead:
        return await claim(self.store, DIGEST, body, SESSION, owner, self.now())

    async def claim(self, owner: str = "turn_1") -> StreamClaim:
        claimed = await self.claim_or_head(owner)
        assert isinstance(claimed, StreamClaim)
        return claimed

    async def create_session(self, session: SessionId = SESSION) -> None:
        await self.store.table.write(Put(keys.session_head(self.store.tenant, session), {"user": "ana"}))

    def writer(self, claimed: StreamClaim) -> JournalWriter:
        return JournalWriter(claimed, self.frames, self.now)

    async def follow(self, after: EventId | None = None) -> Follower:
        return await follow(self.store, DIGEST, after, self.now)

    async def read(self, after: EventId | None = None) -> list[tuple[EventId, Frame]]:
        return await read_all(await self.follow(after))

    async def finish(self, writer: JournalWriter, last: Sequence[Frame] = ()) -> None:
        """Commit the turn, and append its last frames to the list."""
        writes = await writer.final_writes(last)
        await self.store.table.transact(writes, token="commit")
        for frame in last:
            self.frames.append(frame)
        self.frames.end()

    def stored(self, session: SessionId = SESSION) -> list[int]:
        """Return the number of frames in each chunk of ``session``."""
        return [len(chunk.frames) for chunk in self.chunks(session)]

    def chunks(self, session: SessionId = SESSION) -> list[Chunk]:
        prefix = keys.STREAM_PREFIX
        partition = keys.session_partition(self.store.tenant, session)
        chunks = [item for item in self.aws.table.items() if item["pk"] == partition and str(item["sk"]).startswith(prefix)]
        return [Chunk.of(item) for item in sorted(chunks, key=lambda item: str(item["sk"]))]


async def read_all(follower: Follower, seconds: float = FOLLOW_SECONDS) -> list[tuple[EventId, Frame]]:
    async with aclosing(follower.frames(seconds)) as frames:
        return [frame async for frame in frames]


def virtual_now() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return EPOCH + loop.moment


def numbered(frames: Sequence[Frame], attempt: int = 1) -> list[tuple[EventId, Frame]]:
    return [(EventId(attempt, n), frame) for n, frame in enumerate(frames, 1)]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    aws = MemoryAws(clock=lambda: EPOCH)
    monkeypatch.setattr("spass.store.table.now_s", lambda: int(virtual_now()))
    with inject(plan := DirectCalls()):
        yield Stream(aws.for_tenant(TenantId("demo")), aws, plan)
