"""A compaction that is cancelled in the middle of a turn: the turn is recorded in the session that it really holds."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.errors import SpassError
from spass.core.events import Event, MessageWritten, TurnFinished, TurnStarted
from spass.core.ids import AgentName, RequestId, SessionId, UserId
from spass.core.messages import FinishReason, Message, Role
from spass.core.run_result import AgentRun, RunResult
from spass.journal.head import StreamState
from spass.sessions.hold import TurnRequest
from spass.sessions.session import CreateSession
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.simulated.scripted_turns import LoadHistory
from tests.unit.sessions.chats import Chats, StreamEnd
from tests.unit.sessions.turns import start_turn

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

T = TypeVar("T")

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
OLD = ["old " * 100, "old " * 100, "new", "newer"]


@dataclass(slots=True)
class Steps(FaultPlan):
    """Make each AWS call without a thread, with one step of the event loop before its effect and one after it."""

    in_threads = False

    async def run_call(self, run: PendingCall[T]) -> T:
        await asyncio.sleep(0)
        result = await run()
        await asyncio.sleep(0)
        return result


@dataclass(slots=True)
class CutTurn:
    """A turn whose compaction is cancelled after ``steps`` steps of the event loop, or earlier by ``cut``. Then the turn ends
    with an empty answer."""

    harness: "SessionsHarness"
    within_turn: bool
    steps: int = 10_000
    was_cut: bool = field(default=False, init=False)
    session: SessionId = field(init=False)
    _work: asyncio.Task[object] | None = field(default=None, init=False)

    @property
    def chats(self) -> Chats:
        return Chats(self.harness.sessions, self.harness.scope(), self.harness.now)

    async def run(self) -> RunResult:
        """Run the turn in a new session that it compacts."""
        harness = self.harness
        self.session = await harness.create_with(CreateSession(compact_strategy="auto", compact_keep_last_n=2))
        harness.summarizer.text = "short"
        for question, answer in (OLD[:2], OLD[2:]):
            await harness.say(self.session, question, answer)
        claimed = await self.chats.claim("m-1" + self.session, self.session)
        run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
        request = TurnRequest(self.session, UserId("ana"), "hello", run, 250, stream=claimed, message_id="m-1")
        scope = harness.scope().for_agent(AGENT, self.session)

        async def respond(_: str, load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            yield TurnStarted()
            await self._cut_off(shorten if self.within_turn else load)
            assert scope.session is not None
            held = await harness.sessions.get(scope, AGENT, scope.session)
            assert held.hold is not None, "the scope names the session that the turn holds"
            assert (held.hold.owner, held.hold.message_id) == (claimed.head.owner, "m-1")
            yield MessageWritten(Message(Role.ASSISTANT, ""))
            yield TurnFinished(FinishReason.STOP)

        turn = start_turn(harness.sessions, scope, request, respond, [StreamEnd(claimed)])
        outcome = (await turn.answer()).outcome
        assert outcome.session_id == scope.session
        return outcome

    def cut(self) -> None:
        assert self._work is not None
        self.was_cut = self._work.cancel() or self.was_cut

    async def _cut_off(self, work: Callable[[], Awaitable[object]]) -> None:
        async def result() -> object:
            return await work()

        self._work = asyncio.create_task(result())
        for _ in range(self.steps):
            if self._work.done():
                break
            await asyncio.sleep(0)
        else:
            self.cut()
        with suppress(asyncio.CancelledError):
            await self._work

    async def check(self, outcome: RunResult) -> None:
        """Assert that the turn is recorded once, in the session that its outcome names, and that the session can continue."""
        chats = self.chats
        source = await chats.sessions.get(chats.scope, AGENT, self.session)
        last = source.successor_session_id or source.id
        kept = [f"[compaction summary from session {source.id}] short", *OLD[2:]] if source.archived_at is not None else OLD
        assert outcome.session_id == last
        assert (outcome.compaction is not None) is (last != source.id)
        assert await chats.texts(last) == [*kept, "hello", ""]
        assert (await chats.texts(source.id))[:4] == OLD
        for session in {source.id, last}:
            assert (await chats.sessions.get(chats.scope, AGENT, session)).hold is None
        head = await chats.head("m-1" + source.id)
        assert head is not None
        assert head.state is StreamState.DONE
        again = await chats.send("m-2" + source.id, source.id)
        assert (await chats.texts(again.session_id))[-2:] == ["hello", "yes"]


@pytest.mark.parametrize("within_turn", [False, True])
async def test_a_turn_is_valid_wherever_its_compaction_is_cancelled(harness: "SessionsHarness", within_turn: bool) -> None:
    harness.summarizer.during = partial(asyncio.sleep, 0)
    stayed: list[bool] = []
    was_cut = True
    while was_cut:
        turn = CutTurn(harness, within_turn, steps=len(stayed))
        with inject(Steps()):
            outcome = await turn.run()
            await turn.check(outcome)
        was_cut = turn.was_cut
        stayed.append(outcome.session_id == turn.session)
    assert len(stayed) >= 8
    assert set(stayed[:-1]) == {True, False}, "some cuts come before the compaction is committed, and some after"


@dataclass(slots=True)
class CutAtFault(Steps):
    """Cancel the compaction of ``turn`` when it makes the call that fails."""

    turn: CutTurn | None = None

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if self.turn is not None and len(self.calls) == self.at:
            asyncio.get_running_loop().call_soon(self.turn.cut)
        return await Steps.around(self, call, run)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_cancelled_compaction_with_a_fault_is_complete_or_absent(
    harness: "SessionsHarness", fault: Fault, times: int
) -> None:
    """The compaction is cancelled while its call fails. The turn is recorded once or refused, and the next one continues."""
    await harness.create()  # reads the tenant's settings
    with inject(Steps()) as plan:
        await CutTurn(harness, within_turn=True).run()
    made = [call.operation for call in plan.calls]
    first = made.index("UpdateItem", len(made) - made[::-1].index("Query"))
    points = range(first, len(made) - 2)
    assert [made[point] for point in points] == ["UpdateItem", "TransactWriteItems"], "the lease of the stream, and the commit"
    for point in points:
        turn = CutTurn(harness, within_turn=True)
        outcome = None
        with inject(CutAtFault(fault, at=point, times=times, turn=turn)) as plan, suppress(SpassError, Crash):
            outcome = await turn.run()
        assert turn.was_cut
        if outcome is not None:
            await turn.check(outcome)
            continue
        harness.now += 2 * LEASE_SECONDS
        again = await turn.chats.send("m-2" + turn.session, turn.session)
        assert (await turn.chats.texts(again.session_id))[-4:] == [*OLD[2:], "hello", "yes"]
