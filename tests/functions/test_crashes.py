"""Crash anywhere: each AWS call of a streamed turn crashes before, crashes after, gets no reply, or is throttled.

A turn is recorded once or not at all, and ``done`` is in its journal if and only if it is recorded. Followers end within 90 s.
Then the same POST leads to one turn and a whole stream.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from spass.journal.head import StreamState
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault
from tests.functions.chat_turns import KINDS, ChatTurn
from tests.sampling import SOAK, sampled
from tests.simulated.chats import Answer, Chats, Process, virtual_clocks, virtual_now
from tests.stream_grammar import Received, check_events, check_ids, of_type, parse_events, receive

pytestmark = pytest.mark.anyio

FOLLOWER_SECONDS: Final = 90.0
FAULTS: Final = [
    (Fault.CRASH_BEFORE, 1),
    (Fault.CRASH_AFTER, 1),
    (Fault.LOST_REPLY, 1),
    (Fault.LOST_REPLY, 2),
    (Fault.THROTTLE, 2),
]
"""Faults, and the number of calls in a row that have them. The table retries each call once."""
LONGER: Final = [(Fault.LOST_REPLY, 7), (Fault.THROTTLE, 5)]
"""Faults of several calls. They reach each call from every one of the calls before it, so normal runs try every third point."""
OUTAGES: Final = [(fault, times) for fault in (Fault.LOST_REPLY, Fault.THROTTLE, Fault.REPEATED) for times in range(3, 20)]


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    with virtual_clocks(stop_poll=1.5):
        yield Chats(tmp_path)


class Attempt:
    """An attempt of ``turn`` with faults, and a follower that joins as soon as there is a stream."""

    def __init__(self, turn: ChatTurn, process: Process) -> None:
        self.turn = turn
        self.process = process
        self.answer = Answer()
        self.followed = Answer()
        self.has_ended = False

    async def run(self) -> None:
        """Run until the POST and the follower have ended."""
        posting = asyncio.create_task(self.turn.send(self.process, self.answer))
        following = asyncio.create_task(self._follow())
        stopping = asyncio.create_task(self.turn.stop())
        await posting
        self.has_ended = True
        ended_at = self.process.crashed_at or virtual_now()
        await following
        assert virtual_now() <= ended_at + FOLLOWER_SECONDS
        stopping.cancel()

    async def _follow(self) -> None:
        while True:
            self.followed = await self.turn.chats.follow(self.turn.message_id)
            ids = receive(self.followed.body).ids
            if self.has_ended or (ids and ids[0].attempt == self.turn.attempt):
                return
            await asyncio.sleep(0.2)

    async def check(self) -> None:
        """Check what is stored, and what the client and the follower have received."""
        turn, head = self.turn, await self.turn.head()
        recorded = await turn.recorded()
        assert len(recorded) <= 1
        journal = turn.journal(head) if head is not None else []
        assert any('"type":"done"' in data for data in journal) == bool(recorded)
        assert (head is not None and head.state is StreamState.DONE) == bool(recorded)
        read = receive(self.answer.body)
        check_ids(read.sent)
        check_events(read.events, whole=False)
        assert bool(recorded) or not of_type(read.events, "done")
        if self.answer.status >= 400:
            assert not recorded
            assert len(turn.new_sessions()) <= (turn.creates if self.answer.status == 503 else 0)
        if head is not None and head.state is not StreamState.RUNNING and read.ids and read.ids[0].attempt == head.attempt:
            assert _lines(self.answer, read)[: len(read.ids)] == journal[: len(read.ids)]
        if self.followed.status == 200:
            followed = receive(self.followed.body)
            assert self.followed.is_whole
            events = parse_events(self.followed.body)
            assert events[-1]["type"] in ("done", "error")
            if head is not None and followed.ids and followed.ids[0].attempt == head.attempt:
                assert (events[-1]["type"] == "done") == bool(recorded)
                assert _lines(self.followed, followed)[: len(followed.ids)] == journal[: len(followed.ids)]
        else:
            assert self.followed.status == 404


def _lines(answer: Answer, read: Received) -> list[str]:
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    return lines[: len(read.sent)]


async def repeat(turn: ChatTurn) -> Answer:
    """Repeat the POST to another worker, as a client does, until its stream is done."""
    turn.is_failing = False
    turn.chats.replace_worker()
    for _ in range(LEASE_SECONDS):
        answer = await turn.send()
        if answer.status == 200:
            assert answer.is_whole
            events = parse_events(answer.body)
            if events[-1]["type"] == "done":
                return answer
            assert events[-1]["error"]["code"] in ("turn_lost", "storage_unavailable", "upstream_error"), events[-1]
        elif answer.status == 308:
            turn.path = urlsplit(answer.headers["location"]).path
        else:
            assert answer.status in (409, 503), answer.body
            await asyncio.sleep(float(answer.headers["retry-after"]))
    raise AssertionError("the turn still fails")


async def check_end(turn: ChatTurn, last: Answer) -> None:
    """Check that the turn is recorded once, and that its stream is complete for all who read it now."""
    assert len(await turn.recorded()) == 1
    assert len(turn.new_sessions()) == turn.creates
    assert [session.id for session in turn.chats.sessions() if session.hold is not None] == []
    head = await turn.head()
    assert head is not None
    assert head.state is StreamState.DONE
    replay = await turn.chats.follow(turn.message_id)
    assert receive(replay.body).sent == receive(last.body).sent
    assert receive((await turn.send()).body).sent == receive(last.body).sent


def faults_at(point: int) -> Sequence[tuple[Fault, int]]:
    if SOAK:
        return [*FAULTS, *LONGER, *OUTAGES]
    return FAULTS if point % 3 else [*FAULTS, *LONGER]


async def count_calls(chats: Chats, kind: str) -> Process:
    turn = await ChatTurn.prepare(chats, kind)
    attempt = Attempt(turn, Process())
    await attempt.run()
    await attempt.check()
    return attempt.process


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_is_recorded_once_if_any_call_fails(
    chats: Chats, kind: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = (await count_calls(chats, kind)).calls
    tries = sampled([(point, *fault) for point in range(len(calls)) for fault in faults_at(point)], 4)
    for point, fault, times in tries:
        turn = await ChatTurn.prepare(chats, kind)
        attempt = Attempt(turn, Process(fault, at=point, times=times))
        try:
            await attempt.run()
            await attempt.check()
            await check_end(turn, await repeat(turn))
        except Exception as error:
            error.add_note(f"{fault} x{times} at {point} of {len(calls)}: {calls[point].operation}")
            raise
        capsys.readouterr()
    record_property("points_tried", len(tries))
