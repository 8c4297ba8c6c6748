"""Each row of the table of crashes in the design of chats: where a worker dies, and what comes of its turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spass.core.messages import Role
from spass.journal.head import StreamState
from spass.store.invocation import ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault
from tests.functions.chat_turns import ChatTurn
from tests.functions.test_crashes import FOLLOWER_SECONDS, check_end, repeat
from tests.simulated.chats import Answer, Chats, PausedProcess, Process, virtual_clocks, virtual_now
from tests.stream_grammar import Event, of_type, parse_events

pytestmark = pytest.mark.anyio


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    with virtual_clocks(stop_poll=1.0):
        yield Chats(tmp_path)


async def find_call(chats: Chats, kind: str, *parts: str) -> int:
    """Return the number of the first call of a turn that contains all of ``parts``."""
    turn = await ChatTurn.prepare(chats, kind)
    await turn.send(process := Process())
    return next(number for number, call in enumerate(process.calls) if all(part in _text(call) for part in parts))


def _text(call: ServiceCall) -> str:
    return f"{call.operation} {call.parameters}"


async def crash(chats: Chats, kind: str, fault: Fault, *parts: str) -> ChatTurn:
    """Run a turn of ``kind`` whose worker dies before or after the call that contains ``parts``."""
    number = await find_call(chats, kind, *parts)
    turn = await ChatTurn.prepare(chats, kind)
    await turn.send(process := Process(fault, at=number))
    assert process.crashed
    return turn


CLAIM = ("PutItem", "STREAM#", "sk='HEAD'")
CREATION = ("TransactWriteItems", "'hold'")
HOLD = ("UpdateItem", "'hold'")
FLUSH = ("PutItem", "#1#0000000001")
SECOND_FLUSH = ("PutItem", "#1#0000000003")
COMMIT = ("TransactWriteItems", "TURN#", "STREAM#")


async def read_lost(turn: ChatTurn) -> list[Event]:
    """Follow the stream of a dead worker. Return the events, after which the turn is lost."""
    started = virtual_now()
    events = parse_events((await turn.chats.follow(turn.message_id)).body)
    assert virtual_now() < started + FOLLOWER_SECONDS
    assert events[-1]["error"]["code"] == "turn_lost"
    assert await turn.recorded() == []
    return events[:-2]


async def second_attempt(turn: ChatTurn) -> Answer:
    """Repeat the POST, which is answered at once. Return its stream, that of attempt 2."""
    turn.chats.replace_worker()
    answer = await turn.send()
    events = parse_events(answer.body)
    assert (events[0]["attempt"], events[-1]["type"]) == (2, "done")
    await check_end(turn, answer)
    return answer


async def test_after_a_crash_between_claim_and_session_the_next_attempt_creates_it(chats: Chats) -> None:
    turn = await crash(chats, "new session", Fault.CRASH_AFTER, *CLAIM)
    assert await read_lost(turn) == []
    head = await turn.head()
    assert head is not None
    assert turn.new_sessions() == []
    await second_attempt(turn)
    assert turn.new_sessions() == [head.session]


async def test_after_a_crash_between_session_and_run_the_session_is_reused(chats: Chats) -> None:
    turn = await crash(chats, "new session", Fault.CRASH_AFTER, *CREATION)
    assert await read_lost(turn) == []
    sessions = turn.new_sessions()
    answer = await second_attempt(turn)
    assert [of_type(parse_events(answer.body), "done")[0]["session_id"]] == sessions == turn.new_sessions()
    imported, told = await chats.turns(sessions[0])
    assert [stored.message.content for stored in imported.messages] == ["before", "Result of the call call_1: 42"]
    assert [stored.message.role for stored in told.messages] == [Role.USER, Role.ASSISTANT]


@pytest.mark.parametrize("place", [HOLD, FLUSH, SECOND_FLUSH])
async def test_after_a_crash_of_a_running_turn_the_next_attempt_takes_its_hold(chats: Chats, place: tuple[str, ...]) -> None:
    turn = await crash(chats, "tools", Fault.CRASH_AFTER, *place)
    (session,) = chats.sessions()
    assert session.hold is not None
    events = await read_lost(turn)
    assert bool(events) == (place != HOLD)
    await second_attempt(turn)


async def test_the_next_attempt_takes_over_a_hold_that_is_still_live(chats: Chats) -> None:
    """Between claim and hold pass two seconds, so the hold of the dead worker expires after its stream's lease."""
    number = await find_call(chats, "existing session", *FLUSH)
    turn = await ChatTurn.prepare(chats, "existing session")
    await turn.send(Process(Fault.CRASH_AFTER, at=number, latency=2.0))
    head, (session,) = await turn.head(), chats.sessions()
    assert head is not None
    await asyncio.sleep(head.expires_at - virtual_now())
    assert session.hold is not None
    assert session.hold.live(virtual_now() + 1)
    await second_attempt(turn)


async def test_the_commit_of_a_worker_that_lost_its_hold_fails(chats: Chats) -> None:
    number = await find_call(chats, "existing session", *COMMIT)
    turn = await ChatTurn.prepare(chats, "existing session")
    posting = asyncio.create_task(turn.send(process := PausedProcess(at=number)))
    await process.paused.wait()
    await asyncio.sleep(LEASE_SECONDS)
    last = await second_attempt(turn)
    process.resumed.set()
    assert parse_events((await posting).body)[-1]["error"]["code"] == "session_busy"
    await check_end(turn, last)


@pytest.mark.parametrize("times", [1, 2, 4])
async def test_a_commit_whose_reply_is_lost_is_settled_by_reading(chats: Chats, times: int) -> None:
    number = await find_call(chats, "new session", *COMMIT)
    turn = await ChatTurn.prepare(chats, "new session")
    answer = await turn.send(Process(Fault.LOST_REPLY, at=number, times=times))
    assert parse_events(answer.body)[-1]["type"] == "done"
    head = await turn.head()
    assert head is not None
    assert head.state is StreamState.DONE
    await check_end(turn, answer)


async def test_after_a_crash_after_the_commit_the_stream_is_complete(chats: Chats) -> None:
    turn = await crash(chats, "new session", Fault.CRASH_AFTER, *COMMIT)
    followed = await chats.follow(turn.message_id)
    assert parse_events(followed.body)[-1]["type"] == "done"
    answer = await repeat(turn)
    assert parse_events(answer.body) == parse_events(followed.body)
    assert parse_events(answer.body)[0]["attempt"] == 1
    await check_end(turn, answer)
