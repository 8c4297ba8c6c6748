"""A streamed turn: its claim, its hold, and the writes that join its commit."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.errors import SessionBusy, SpassError
from spass.core.events import Event, Failed, InferenceStarted, TurnFinished
from spass.core.ids import AgentName, RequestId, SessionId, UserId
from spass.core.messages import Message
from spass.core.run_result import AgentRun, RunResult
from spass.journal.head import StreamState
from spass.runs import run as turn_module
from spass.runs.commit import Participant
from spass.sessions.hold import TurnRequest
from spass.sessions.session import SessionView
from spass.store import keys
from spass.store.leases import LEASE_SECONDS, LeaseLost, renewing
from spass.store.writes import ITEM_ABSENT, ITEM_EXISTS, Delete, Put, Update, Write
from tests.unit.sessions.chats import Chats, say_yes
from tests.unit.sessions.conftest import ScriptedAgent, answer_events, responder
from tests.unit.sessions.turns import ScriptedTurn, start_turn

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")


@pytest.fixture
def chats(harness: "SessionsHarness") -> Chats:
    return Chats(harness.sessions, harness.scope(), harness.now)


@dataclass(slots=True)
class Writes:
    """A participant with given writes. ``received`` are the outcomes that it got."""

    given: Sequence[Write]
    received: list[RunResult] = field(default_factory=list)

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        self.received.append(outcome)
        return self.given


def run_turn(harness: "SessionsHarness", session: SessionId, respond: ScriptedAgent, *participants: Participant) -> ScriptedTurn:
    run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
    request = TurnRequest(session, UserId("ana"), "hello", run, 250)
    return start_turn(harness.sessions, harness.scope(), request, responder(respond), participants)


def marker(harness: "SessionsHarness", name: str) -> keys.Key:
    return keys.commit_marker(harness.scope().store.tenant, name)


async def exists(harness: "SessionsHarness", key: keys.Key) -> bool:
    return await harness.scope().store.table.get(key) is not None


async def test_a_participant_gets_the_outcome_of_a_turn_and_its_writes_are_committed(harness: "SessionsHarness") -> None:
    session = await harness.create()
    joined = Writes([Put(marker(harness, "one"), {}, ITEM_ABSENT)])
    closed: list[bool] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        try:
            for event in answer_events("yes"):
                yield event
        finally:
            closed.append(not await exists(harness, marker(harness, "one")))

    outcome = (await run_turn(harness, session, respond, joined).answer()).outcome
    assert joined.received == [outcome]
    assert (outcome.session_id, outcome.seq) == (session, 2)
    assert await exists(harness, marker(harness, "one"))
    assert closed == [True], "the generator is closed before the turn is recorded"


async def test_a_turn_whose_writes_fail_is_not_recorded(harness: "SessionsHarness") -> None:
    session = await harness.create()

    writes: list[Write] = [Put(marker(harness, "one"), {}), Update(marker(harness, "absent"), set={"a": 1}, when=ITEM_EXISTS)]
    turn = run_turn(harness, session, say_yes, Writes(writes))
    with pytest.raises(SessionBusy, match="took this session over"):
        await turn.answer()
    assert [type(event) for event in turn.events.events if isinstance(event, TurnFinished | Failed)] == [Failed]
    assert not await exists(harness, marker(harness, "one"))
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert (stored.message_count, stored.hold) == (0, None)


async def test_a_turn_ends_with_the_last_event_of_its_agent(harness: "SessionsHarness") -> None:
    session = await harness.create()

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        for event in answer_events("yes"):
            yield event
        raise AssertionError("the agent is closed after its last event")

    turn = run_turn(harness, session, respond)
    assert (await turn.answer()).outcome.content == "yes"
    assert [type(event) for event in turn.events.events if isinstance(event, TurnFinished | Failed)] == [TurnFinished]
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).message_count == 2


async def test_the_owner_of_a_streams_hold_is_the_owner_of_its_head(harness: "SessionsHarness", chats: Chats) -> None:
    session = await harness.create()
    views: list[SessionView] = []
    owners: list[str | None] = []

    async def look(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        stored = await harness.sessions.get(harness.scope(), AGENT, session)
        head = await chats.head("m-1")
        owners.extend([stored.hold.owner if stored.hold else None, head.owner if head else None])
        views.append(harness.sessions.view(stored))
        views.extend((await harness.sessions.page(harness.scope(), AGENT, None, 100)).sessions)
        async for event in say_yes(history, shorten_history):
            yield event

    await chats.send("m-1", session, agent=look)
    assert owners[0] == owners[1] is not None
    assert [view.to_dict()["active_turn"] for view in views] == [{"message_id": "m-1"}, None]
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert harness.sessions.view(stored).active_turn is None
    head = await chats.head("m-1")
    assert head is not None
    assert (head.state, head.session) == (StreamState.DONE, session)


async def test_an_expired_hold_is_not_an_active_turn(harness: "SessionsHarness", chats: Chats) -> None:
    session = await harness.create()

    async def look(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        harness.now += LEASE_SECONDS + 1
        assert harness.sessions.view(await harness.sessions.get(harness.scope(), AGENT, session)).active_turn is None
        for event in answer_events("yes"):
            yield event

    with pytest.raises(LeaseLost):
        await chats.send("m-1", session, agent=look)


async def test_a_turn_whose_worker_paused_for_longer_than_its_lease_ends(harness: "SessionsHarness", chats: Chats) -> None:
    session, steps = await harness.create(), []

    async def pause(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        for event in answer_events("yes"):
            steps.append(event)
            harness.now += LEASE_SECONDS
            yield event

    with pytest.raises(LeaseLost):
        await chats.send("m-1", session, agent=pause)
    assert len(steps) < 3
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).hold is None
    assert await chats.texts(session) == []


async def test_a_busy_session_names_the_stream_that_runs_in_it(harness: "SessionsHarness", chats: Chats) -> None:
    session = await harness.create()
    errors: list[SpassError] = []

    async def compete(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        with pytest.raises(SessionBusy) as chat:
            await chats.send("m-2", session)
        with pytest.raises(SessionBusy) as deletion:
            await harness.sessions.delete(harness.scope(), AGENT, session)
        errors.extend([chat.value, deletion.value])
        async for event in say_yes(history, shorten_history):
            yield event

    await chats.send("m-1", session, agent=compete)
    assert [error.details for error in errors] == [{"message_id": "m-1"}] * 2
    assert await chats.head("m-2") is None, "a refused turn leaves no stream behind"


async def test_a_new_attempt_takes_over_the_live_hold_of_the_attempt_before(harness: "SessionsHarness", chats: Chats) -> None:
    session = await harness.create()
    resume = asyncio.Event()

    async def hang(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        await resume.wait()
        async for event in say_yes(history, shorten_history):
            yield event

    first = await chats.start("m-1", session, agent=hang)
    assert isinstance(first, ScriptedTurn)
    chats.now += LEASE_SECONDS  # the lease of the stream has expired, the hold has not
    outcome = await chats.send("m-1", session, message="again")
    resume.set()
    with pytest.raises(SpassError):
        await first.answer()
    assert await chats.texts(session) == ["again", "yes"]
    assert outcome.session_id == session
    head = await chats.head("m-1")
    assert head is not None
    assert (head.attempt, head.state) == (2, StreamState.DONE)


async def test_a_turn_that_loses_its_stream_ends_and_leaves_its_session_free(
    harness: "SessionsHarness", chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "renewing", lambda renew: renewing(renew, every=0.01))
    session = await harness.create()

    async def lose(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        head = await chats.head("m-1")
        assert head is not None
        await harness.scope().store.table.write(Delete(keys.stream_head(harness.scope().store.tenant, head.digest)))
        await asyncio.sleep(60)

    turn = await chats.start("m-1", session, agent=lose)
    assert isinstance(turn, ScriptedTurn)
    with pytest.raises(LeaseLost):
        await turn.answer()
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert (stored.hold, stored.message_count) == (None, 0)


async def test_a_renewal_extends_the_stream_and_the_hold(
    harness: "SessionsHarness", chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "renewing", lambda renew: renewing(renew, every=0.01))
    session = await harness.create()

    async def wait(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        harness.now += 50
        async with asyncio.timeout(10):
            while not await is_extended():
                await asyncio.sleep(0.01)
        async for event in say_yes(history, shorten_history):
            yield event

    async def is_extended() -> bool:
        head, stored = await chats.head("m-1"), await harness.sessions.get(harness.scope(), AGENT, session)
        expires = int(harness.now) + LEASE_SECONDS
        return head is not None and stored.hold is not None and head.expires_at == stored.hold.expires_at == expires

    await chats.send("m-1", session, agent=wait)
    assert await chats.texts(session) == ["hello", "yes"]
