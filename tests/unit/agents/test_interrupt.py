"""Turns that are cut: whatever the kind and the moment, what remains is a valid turn, and nothing begins after the cut."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds import BaseAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.calls.scope import CallReports
from spass.core.cost import Cost, CostSource, CostTally
from spass.core.effects import Infer, ToolOutcome
from spass.core.errors import StorageUnavailable, UpstreamError
from spass.core.events import (
    CallEvent,
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Nested,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
    collect,
)
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall
from spass.core.time import Deadline
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.leases import LeaseLost, renewing
from spass.testing.model import Answer
from spass.tools.concurrent_calls import run_calls
from tests.sampling import SOAK
from tests.unit.agents.driver_harness import USAGE, ScriptedReply, ScriptedWorld, check_events, echo
from tests.unit.agents.engine_harness import EngineHarness, agent, says, spoken
from tests.unit.agents.test_driver import check_answer, check_messages
from tests.unit.agents.test_laws_of_kinds import AGENTS, CONTEXT, build, random_script
from tests.unit.tools.fakes import scope_for, table_of

pytestmark = pytest.mark.anyio

CUTS = 600 if SOAK else 150
SEEDS = 40 if SOAK else 12
COST = Cost(Decimal("0.25"), Decimal("0.20"), CostSource.CATALOG, 3)
ORCHESTRATOR = OrchestratorAgent()
CANCELLED = {
    "error": {
        "code": "cancelled",
        "message": "The call was cancelled because the work that it belongs to has ended. "
        "A change that it had begun may have been made.",
    }
}


@dataclass
class PausingWorld(ScriptedWorld):
    """A scripted world that awaits before each delta and in each tool, and runs its tools side by side.

    At await number ``stops_at``, ``signal`` fires. With ``hangs``, that await never ends; otherwise it ends at the same moment.
    ``begun`` is the number of effects that had begun when the signal fired. ``yielded`` are the events of the driver.
    """

    signal: StopSignal = field(default_factory=StopSignal)
    stops_at: int | None = None
    hangs: bool = False
    awaits: int = 0
    begun: int | None = None
    rounds: int = 0
    yielded: list[Event] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.effects) + self.rounds

    async def pause(self) -> None:
        self.awaits += 1
        if self.awaits == self.stops_at:
            asyncio.get_running_loop().call_soon(self.stop)
            if self.hangs:
                await asyncio.Event().wait()
        await asyncio.sleep(0)

    def stop(self) -> None:
        self.begun = self.count
        self.signal.stop()

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        async with aclosing(super().perform(effect)) as deltas:
            await self.pause()
            async for delta in deltas:
                yield delta
                await self.pause()

    async def call_tools(self, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
        self.rounds += 1
        self.open_streams += 1
        try:
            async with aclosing(run_calls(calls, self._call, concurrency=2)) as events:
                async for event in events:
                    yield event
        finally:
            self.open_streams -= 1

    async def _call(self, call: ToolCall, reports: CallReports) -> ToolOutcome:
        """Work within the call makes a call of its own, which makes another one."""
        self.executed.append(call)
        await self.pause()
        reports.progress("half")
        inner, innermost = (replace(call, id=f"{call.id}.{number}") for number in (1, 2))
        reports.forward(Nested("a", call.id, ToolCallStarted(inner)))
        await self.pause()
        reports.forward(Nested("b", inner.id, ToolCallStarted(innermost)))
        reports.forward(Nested("b", inner.id, ToolProgress(innermost.id, "half")))
        await self.pause()
        reports.forward(Nested("b", inner.id, ToolCallFinished(echo(innermost))))
        reports.forward(Nested("a", call.id, ToolCallFinished(echo(inner))))
        await self.pause()
        return echo(call)

    def events(self, agent: BaseAgent, deadline: Deadline | None = None) -> AsyncGenerator[Event, None]:
        """Return the events of a turn that ``signal`` stops. The turn has cost ``COST`` before its first model call."""
        self.scope.tally.add(COST)

        async def watched() -> AsyncGenerator[Event, None]:
            async with aclosing(self.driver().run(agent, "?", CONTEXT)) as events:
                async for event in events:
                    self.yielded.append(event)
                    yield event

        return interruptible(watched(), signal=self.signal, deadline=deadline, tally=self.scope.tally)


def spent() -> CostTally:
    tally = CostTally()
    tally.add(COST)
    return tally


async def drain(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


def expected_messages(events: Sequence[Event]) -> list[tuple[Role, str]]:
    """Return the messages of a turn that is cut after ``events``, as the contract states it."""
    messages: list[tuple[Role, str]] = []
    results: dict[str, str] = {}
    open_step, answered = False, False
    shown: dict[int, str] = {}
    last: Sequence[ToolCall] = ()

    def add_results() -> None:
        cancelled = '{"error":{"code":"cancelled","message":"' + CANCELLED["error"]["message"] + '"}}'
        messages.extend((Role.TOOL, results.get(call.id, cancelled)) for call in last)

    for event in events:
        match event:
            case Token(text=text, step=step):
                shown[step] = shown.get(step, "") + text
            case InferenceStarted():
                open_step = True
            case InferenceFinished(message=message) | MessageWritten(message=message):
                open_step = False
                add_results()
                messages.append((Role.ASSISTANT, message.content))
                last = message.tool_calls
            case ToolCallFinished(outcome=outcome):
                results[outcome.call.id] = outcome.message.content
            case _:
                pass
    add_results()
    visible = shown[max(shown)] if shown else ""
    answered = bool(messages) and not open_step and messages[-1] == (Role.ASSISTANT, visible) and not last
    return messages if answered else [*messages, (Role.ASSISTANT, visible)]


def check_cut(events: Sequence[Event], yielded: Sequence[Event], reason: FinishReason = FinishReason.CANCELLED) -> None:
    """Assert that the list is a valid turn: what the driver ``yielded``, and the end that it lacks."""
    finished, outcome = events[-1], collect(events)
    assert isinstance(finished, TurnFinished)
    assert (finished.finish_reason, finished.cost) == (reason, COST)
    check_events(events, cut=True)
    check_answer(events)
    check_messages(outcome.messages)
    assert [*events[: len(yielded)]] == [*yielded] or not yielded
    assert [(message.role, message.content) for message in outcome.messages] == expected_messages(yielded)
    assert [outcome.message.tool_call_id for outcome in outcome.tool_calls] == [
        call.id for message in outcome.messages for call in message.tool_calls
    ]
    assert all(tool.ok is False for tool in outcome.tool_calls if tool.result == CANCELLED)


async def check_next_turn(history: Sequence[Message]) -> None:
    """Assert that the next turn sends the history as a valid conversation."""
    world = ScriptedWorld([ScriptedReply("next")])
    conversation = [*CONTEXT.conversation, Message(Role.USER, "?"), *history, Message(Role.USER, "and now?")]
    await world.run(ORCHESTRATOR, "and now?", context=type(CONTEXT)(conversation=tuple(conversation)))
    sent = world.effects[0].messages
    waiting: list[str] = []
    for message in sent:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_turn_cut_at_any_event_is_valid(kind: str) -> None:
    cuts = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        agent, script = build(kind, rng), random_script(rng)
        uncut = await drain(PausingWorld(script).events(agent))
        for place in range(len(uncut)):
            world, events = PausingWorld(script), []
            if place == 0:
                world.stop()
            async for event in world.events(agent):
                events.append(event)
                if len(events) == place:
                    world.stop()
            assert world.open_streams == 0
            assert world.count == world.begun
            assert [type(event) for event in events[:place]] == [type(event) for event in uncut[:place]]
            check_cut(events, world.yielded)
            await check_next_turn(collect(events).messages)
            cuts += 1
    assert cuts > 2.5 * SEEDS


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("hangs", [True, False], ids=["work that hangs", "work that ends"])
async def test_a_turn_cut_inside_an_effect_is_valid_and_begins_nothing(kind: str, hangs: bool) -> None:
    cuts, tasks = 0, len(asyncio.all_tasks())
    for seed in range(CUTS):
        rng = random.Random(seed)
        agent, script = build(kind, rng), random_script(rng)
        uncut = PausingWorld(script)
        failed = isinstance((await drain(uncut.events(agent)))[-1], Failed)
        world = PausingWorld(script, stops_at=rng.randint(1, uncut.awaits + 1), hangs=hangs)
        async with asyncio.timeout(5):
            events = await drain(world.events(agent))
        assert world.open_streams == 0
        assert len(asyncio.all_tasks()) == tasks
        last = events[-1]
        if world.begun is None or (isinstance(last, TurnFinished) and last.finish_reason is not FinishReason.CANCELLED):
            check_events(events)
            continue
        assert world.count == world.begun, f"seed {seed}"
        assert isinstance(last, TurnFinished) or failed
        if isinstance(last, TurnFinished):
            check_cut(events, world.yielded)
            await check_next_turn(collect(events).messages)
            cuts += 1
    assert cuts > CUTS / 3


async def test_a_turn_that_is_cut_in_its_text_answers_with_that_text() -> None:
    world = PausingWorld([ScriptedReply("one|two|three")], stops_at=3, hangs=True)
    assert await drain(world.events(ORCHESTRATOR)) == [
        TurnStarted(),
        InferenceStarted(1),
        Token("one", 1),
        Token("two", 1),
        InferenceFinished(Message(Role.ASSISTANT, "onetwo"), FinishReason.CANCELLED),
        TurnFinished(FinishReason.CANCELLED, cost=COST),
    ]


async def test_open_calls_get_the_error_cancelled_and_the_others_keep_their_results() -> None:
    script = [ScriptedReply("let me", ("fast", "slow", "waiting"), FinishReason.TOOL_CALLS), ScriptedReply("done")]
    world = PausingWorld(script)
    events: list[Event] = []
    async for event in world.events(ORCHESTRATOR):
        events.append(event)
        if isinstance(event, ToolCallFinished):
            world.stop()
    outcome = collect(events)
    assert [(tool.call.name, tool.ok) for tool in outcome.tool_calls] == [("fast", True), ("slow", False), ("waiting", False)]
    assert [tool.result for tool in outcome.tool_calls] == ["call_0_0", CANCELLED, CANCELLED]
    assert (outcome.content, outcome.turns, outcome.usage) == ("let me", 1, USAGE)
    assert [message.role for message in outcome.messages] == [Role.ASSISTANT, *[Role.TOOL] * 3, Role.ASSISTANT]
    assert len(world.effects) == 1


async def test_open_calls_within_open_calls_end_first_and_are_not_part_of_the_turn() -> None:
    world = PausingWorld([ScriptedReply("", ("slow",), FinishReason.TOOL_CALLS)])
    events: list[Event] = []
    async for event in world.events(ORCHESTRATOR):
        events.append(event)
        if isinstance(event, Nested) and isinstance(event.event, ToolProgress):
            world.stop()
    assert [tool.call.id for tool in collect(events).tool_calls] == ["call_0_0"]
    ends: list[tuple[str, str, str, Json]] = []
    for event in events:
        match event:
            case Nested(agent=by, parent_id=parent, event=ToolCallFinished(outcome=outcome)):
                ends.append((by, parent, outcome.call.id, outcome.result))
            case ToolCallFinished(outcome=outcome):
                ends.append(("", "", outcome.call.id, outcome.result))
            case _:
                pass
    assert ends == [
        ("b", "call_0_0.1", "call_0_0.2", CANCELLED),
        ("a", "call_0_0", "call_0_0.1", CANCELLED),
        ("", "", "call_0_0", CANCELLED),
    ]


async def test_a_turn_that_is_stopped_before_it_runs_has_an_empty_answer() -> None:
    world = PausingWorld([ScriptedReply("never")])
    world.signal.stop()
    assert await drain(world.events(ORCHESTRATOR)) == [
        TurnStarted(),
        MessageWritten(Message(Role.ASSISTANT, "")),
        TurnFinished(FinishReason.CANCELLED, cost=COST),
    ]
    assert world.effects == []


async def test_a_stop_after_the_answer_is_recorded_adds_no_second_answer() -> None:
    world = PausingWorld([ScriptedReply("forty")])
    events: list[Event] = []
    async for event in world.events(ORCHESTRATOR):
        events.append(event)
        if isinstance(event, InferenceFinished):
            world.signal.stop()
    assert collect(events).messages == [Message(Role.ASSISTANT, "forty")]
    assert events[-1] == TurnFinished(FinishReason.CANCELLED, USAGE, COST)


async def test_a_stop_after_the_last_event_changes_nothing() -> None:
    for script, last in (([ScriptedReply("forty")], TurnFinished), ([UpstreamError("Down.")], Failed)):
        world = PausingWorld(script)
        events: list[Event] = []
        async for event in world.events(ORCHESTRATOR):
            events.append(event)
            if isinstance(event, last):
                world.signal.stop()
        world.signal.stop()
        assert isinstance(events[-1], last)
        assert sum(isinstance(event, TurnFinished | Failed) for event in events) == 1
        assert not isinstance(events[-1], TurnFinished) or events[-1].finish_reason is FinishReason.STOP


async def test_a_turn_that_reaches_its_deadline_is_kept() -> None:
    world = PausingWorld([ScriptedReply("one|two")], stops_at=99)
    waiting = asyncio.Event()

    async def hang() -> None:
        if world.awaits:
            await waiting.wait()
        world.awaits += 1

    world.pause = hang  # type: ignore[method-assign]
    events = await drain(world.events(ORCHESTRATOR, Deadline.after(0.05)))
    check_cut(events, world.yielded, FinishReason.DEADLINE)
    assert collect(events).content == "one"


async def test_a_deadline_that_has_passed_cuts_the_turn_before_it_runs() -> None:
    world = PausingWorld([ScriptedReply("never")])
    events = await drain(world.events(ORCHESTRATOR, Deadline.after(-1)))
    assert [type(event) for event in events] == [TurnStarted, MessageWritten, TurnFinished]
    assert collect(events).finish_reason is FinishReason.DEADLINE
    assert world.effects == []


async def test_the_first_reason_counts() -> None:
    signal = StopSignal()
    signal.stop(FinishReason.DEADLINE)
    signal.stop()
    assert signal.reason is FinishReason.DEADLINE


@pytest.mark.parametrize("stopped", [False, True], ids=["alone", "together with a stop"])
async def test_a_cancellation_from_outside_is_not_a_stop(stopped: bool) -> None:
    world = PausingWorld([ScriptedReply("one|two")], stops_at=-1)
    events: list[Event] = []

    async def run() -> None:
        async for event in world.events(ORCHESTRATOR):
            events.append(event)
            if isinstance(event, Token):
                world.stops_at, world.hangs, world.stop = world.awaits + 1, True, cancel  # type: ignore[method-assign]

    def cancel() -> None:
        if stopped:
            world.signal.stop()
        task.cancel()

    task = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert world.open_streams == 0
    assert not any(isinstance(event, TurnFinished | Failed) for event in events)


async def test_a_lost_lease_ends_the_turn_without_an_answer_also_after_a_stop() -> None:
    async def renew() -> None:
        world.signal.stop()
        raise StorageUnavailable("The table is gone.")

    world = PausingWorld([ScriptedReply("one|two")], stops_at=2, hangs=True)
    world.stop = lambda: None  # type: ignore[method-assign]
    events: list[Event] = []
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(5), renewing(renew, every=0.01):
            async for event in world.events(ORCHESTRATOR):
                events.append(event)
    assert not any(isinstance(event, TurnFinished | Failed) for event in events)
    assert world.open_streams == 0


@pytest.mark.parametrize("behaviour", ["raises", "swallows", "fails"])
async def test_a_driver_that_does_not_end_well_is_still_cut(behaviour: str) -> None:
    closed: list[str] = []

    async def driver() -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        yield InferenceStarted(1)
        yield Token("so", 1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            closed.append(behaviour)
            if behaviour == "raises":
                raise ZeroDivisionError from None
            if behaviour == "fails":
                yield Failed(UpstreamError("Down."))
                return
        try:
            yield Token(" far", 1)
        except GeneratorExit:
            raise ValueError("the cleanup fails too") from None

    signal = StopSignal()
    asyncio.get_running_loop().call_later(0.01, signal.stop)
    async with asyncio.timeout(5):
        events = await drain(interruptible(driver(), signal=signal, deadline=None, tally=spent()))
    assert closed == [behaviour]
    assert collect(events).content == ("so far" if behaviour == "swallows" else "so")
    assert events[-1] == TurnFinished(FinishReason.CANCELLED, cost=COST)


async def test_an_exception_of_a_driver_that_nobody_stopped_is_raised() -> None:
    async def driver() -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await drain(interruptible(driver(), signal=StopSignal(), deadline=None, tally=spent()))


async def test_closing_the_list_closes_the_driver() -> None:
    world = PausingWorld([ScriptedReply("one|two")])
    events = world.events(ORCHESTRATOR, Deadline.after(60))
    async for event in events:
        if isinstance(event, Token):
            break
    await events.aclose()
    assert world.open_streams == 0


@pytest.mark.parametrize(
    ("place", "visible"), [("before the first token", ""), ("in the text", "It is so far"), ("in a tool", "I ask.")]
)
async def test_the_cost_of_a_cut_turn_has_the_calls_that_were_cut(harness: EngineHarness, place: str, visible: str) -> None:
    scope, signal = scope_for(), StopSignal()
    closed: list[str] = []

    async def hang(request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        try:
            if place == "in the text":
                yield ChatDelta("It is so far")
                yield ChatDelta(".")  # the redactor holds it until it knows what follows
            asyncio.get_running_loop().call_soon(signal.stop)
            await asyncio.Event().wait()
        finally:
            closed.append(request.model)

    def script(request: ChatRequest, context: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        context.attempt.sent = True
        asks = place == "in a tool" and len(harness.model.requests) == 1
        return spoken(says("I ask.", ("llm", '{"prompt": "?"}')), stream=True) if asks else hang(request)

    harness.model.script = script
    run = harness.engine.run(scope, agent(tools=["llm"]), "?")
    events = await drain(interruptible(run, signal=signal, deadline=None, tally=scope.tally))
    outcome = collect(events)
    audited = [put.attributes for put in table_of(scope).written]
    assert closed == ["talker"]
    assert table_of(scope).audited("chat")[-1] == ("talker", "cancelled")
    assert table_of(scope).audited("tool") == ([("llm", "cancelled")] if place == "in a tool" else [])
    assert outcome.cost == scope.tally.total
    assert outcome.cost.usd == sum((Decimal(str(record.get("cost_usd", 0))) for record in audited), Decimal(0))
    assert outcome.cost.sub_calls == len(table_of(scope).audited("chat"))
    assert outcome.cost.usd > 0
    assert outcome.content == visible
