"""An agent that delegates: nested turns within its calls, with one usage, one stop and one deadline."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds import KINDS, AgentContext, BaseAgent
from spass.calls.scope import Scope
from spass.core.bus import AGENT_TURN_END, EventBus
from spass.core.bus_events import AgentTurnEnd
from spass.core.effects import Steps
from spass.core.errors import StorageUnavailable
from spass.core.events import Event, Failed, TurnFinished, collect
from spass.core.messages import FinishReason, TokenUsage
from spass.core.time import Deadline
from spass.models.errors import BackendUnavailable
from spass.models.types import ChatDelta
from tests.unit.agents.delegate_harness import Company, Line, agent, audited_usage, nested_ends, nested_starts
from tests.unit.agents.driver_harness import check_events
from tests.unit.agents.engine_harness import says
from tests.unit.tools.fakes import FakeReader, scope_for, table_of

pytestmark = pytest.mark.anyio

SUM = ("calculator", '{"expression": "6*7"}')
USAGE = TokenUsage(10, 5)  # of one model call


def task(name: str, text: str = "Do it.") -> tuple[str, str]:
    return ("delegate", json.dumps({"agent": name, "task": text}))


def results(events: Sequence[Event]) -> list[Any]:
    return [tool.result for tool in collect(events).tool_calls]


def error_codes(events: Sequence[Event]) -> list[str | None]:
    return [result.get("error", {}).get("code") for result in results(events)]


async def test_two_delegates_work_at_the_same_time_and_their_answers_are_the_results() -> None:
    working = 0

    async def answer(text: str) -> AsyncGenerator[ChatDelta, None]:
        nonlocal working
        working += 1
        while working < 2:  # each waits for the other one
            await asyncio.sleep(0)
        yield ChatDelta(text)
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE)

    lines: dict[str, list[Line]] = {
        "boss": [says("I ask.", task("coder", "Write."), task("writer", "Describe.")), says("Done.")],
        "coder": [says("I compute.", SUM), answer("It is 42.")],
        "writer": [says("I compute too.", SUM), answer("Described.")],
    }
    company, scope = Company([agent("boss", "coder", "writer"), agent("coder"), agent("writer")], lines), scope_for()
    async with asyncio.timeout(5):
        events = await company.events(scope)
    check_events(events)
    assert results(events) == [
        {"agent": name, "answer": said, "finish_reason": "stop", "versions": [], "approvals": []}
        for name, said in (("coder", "It is 42."), ("writer", "Described."))
    ]
    calls = [tool.call.id for tool in collect(events).tool_calls]
    assert sorted(nested_ends(events)) == [("coder", calls[0], "calculator", True), ("writer", calls[1], "calculator", True)]
    starts = [call.id for call in nested_starts(events)]
    assert len({*starts, *calls}) == 4, "all models number their calls alike"
    assert [message.content for message in company.requests_of("coder")[0].messages] == ["coder", "Write."]
    assert collect(events).content == "Done."


async def test_the_usage_of_the_turn_is_that_of_all_its_calls_and_each_call_has_its_place() -> None:
    lines: dict[str, list[Line]] = {
        "boss": [says("", task("coder"), ("llm", '{"prompt": "?"}')), says("Done.")],
        "coder": [says("", task("helper")), says("Done.")],
        "helper": [says("", SUM), says("Done.")],
        "?": [says("A second opinion.")],
    }
    agents = [agent("boss", "coder", tools=["delegate", "llm"]), agent("coder", "helper"), agent("helper")]
    company, scope = Company(agents, lines), scope_for()
    events = await company.events(scope)
    outcome = collect(events)
    assert outcome.usage == audited_usage(scope) == TokenUsage(70, 35)
    audited = [put.attributes for put in table_of(scope).written]
    assert outcome.cost.usd == sum((Decimal(str(record.get("cost_usd", 0))) for record in audited), Decimal(0)) > 0
    assert outcome.cost.sub_calls == 7
    agent_of = {record["request_id"]: (record["agent"], record.get("tool") or record.get("model")) for record in audited}
    places = [(agent_of.get(record["parent_request_id"]), agent_of[record["request_id"]]) for record in audited]
    assert sorted(places, key=str) == sorted(
        [
            *[(None, ("boss", name)) for name in ("talker", "talker", "delegate", "llm")],
            (("boss", "llm"), ("boss", "talker")),
            *[(("boss", "delegate"), ("coder", name)) for name in ("talker", "talker", "delegate")],
            *[(("coder", "delegate"), ("helper", name)) for name in ("talker", "talker", "calculator")],
        ],
        key=str,
    )
    (outer,) = [tool.call.id for tool in outcome.tool_calls if tool.call.name == "delegate"]
    (inner,) = [call.id for call in nested_starts(events) if call.name == "delegate"]
    assert nested_ends(events) == [("helper", inner, "calculator", True), ("coder", outer, "delegate", True)]


async def test_the_turns_of_delegates_are_published_with_their_own_usage() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder"), task("coder")), says("Done.")], "coder": [says("Done.")]}
    company, bus, ends = Company([agent("boss", "coder"), agent("coder")], lines), EventBus(), list[AgentTurnEnd]()
    bus.subscribe(AGENT_TURN_END, ends.append)
    scope = scope_for()
    await company.events(replace(scope, bus=bus))
    assert [(end.agent, end.prompt_tokens, end.tool_calls) for end in ends] == [
        ("coder", 10, 0),
        ("coder", 10, 0),
        ("boss", 40, 2),
    ]
    assert len({end.parent_request_id for end in ends}) == 3


async def test_only_agents_of_the_list_can_be_delegates() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("other"), task("boss")), says("Done.")], "other": [says("No.")]}
    company = Company([agent("boss", "coder"), agent("other")], lines)
    events = await company.events(scope_for())
    assert error_codes(events) == ["agent_not_found"] * 2
    assert company.asked == ["boss", "boss"]
    assert "'other'" in results(events)[0]["error"]["message"]
    assert results(events)[0]["error"]["message"].endswith("Use one of: coder.")


async def test_a_delegate_that_was_removed_is_an_error_that_the_model_reads() -> None:
    company = Company([agent("boss", "gone")], {"boss": [says("", task("gone")), says("Done.")]})
    events = await company.events(scope_for())
    assert (error_codes(events), collect(events).content) == (["agent_not_found"], "Done.")


async def test_the_ninth_delegate_of_a_turn_is_refused_in_one_reply_and_over_several() -> None:
    lines: dict[str, list[Line]] = {
        "boss": [says("", *[task("coder")] * 4), says("", *[task("coder")] * 6), says("Done.")],
        "coder": [says("Done.")],
    }
    company = Company([agent("boss", "coder"), agent("coder")], lines)
    events = await company.events(scope_for())
    assert sorted(error_codes(events), key=str) == [None] * 8 + ["too_many_delegates"] * 2
    assert company.asked.count("coder") == 8


async def test_the_delegates_of_delegates_count_for_the_same_turn() -> None:
    lines: dict[str, list[Line]] = {
        "boss": [says("", task("coder")), says("", task("coder")), says("Done.")],
        "coder": [says("", *[task("helper")] * 9), says("First."), says("Second.")],
        "helper": [says("Done.")],
    }
    company = Company([agent("boss", "coder"), agent("coder", "helper"), agent("helper")], lines)
    events = await company.events(scope_for())
    assert (company.asked.count("helper"), error_codes(events)) == (7, [None, "too_many_delegates"])


async def test_a_delegate_at_depth_3_is_refused_before_anything_is_asked() -> None:
    lines: dict[str, list[Line]] = {by: [says("", task(to)), says("Done.")] for by, to in zip("abc", "bcd", strict=True)}
    company, scope = Company([agent(*pair) for pair in ("ab", "bc", "cd", "d")], lines), scope_for()
    events = await company.events(scope)
    assert error_codes(events) == [None]
    assert company.asked == ["a", "b", "c", "c", "b", "a"]
    assert [by for by, _, _, ok in nested_ends(events) if not ok] == ["c"]
    assert "recursion_depth_exceeded" in company.requests_of("c")[1].messages[-1].content


async def test_a_request_that_is_two_levels_deep_cannot_delegate() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder")), says("Done.")], "coder": [says("No.")]}
    company = Company([agent("boss", "coder"), agent("coder")], lines)
    events = await company.events(scope_for(depth=2))
    assert (error_codes(events), company.asked) == (["recursion_depth_exceeded"], ["boss", "boss"])


async def test_a_delegate_that_fails_is_an_error_that_the_model_reads() -> None:
    lines: dict[str, list[Line]] = {
        "boss": [says("", task("coder")), says("Then without.")],
        "coder": [says("", SUM), BackendUnavailable("The model is down.")],
    }
    company, scope = Company([agent("boss", "coder"), agent("coder")], lines), scope_for()
    events = await company.events(scope)
    check_events(events)
    (result,) = results(events)
    assert result["error"]["code"] == "upstream_error"
    assert result["error"]["message"].startswith("The agent 'coder' failed. ")
    assert collect(events).content == "Then without."
    assert collect(events).usage == audited_usage(scope)


@dataclass(frozen=True, kw_only=True)
class Broken(BaseAgent):
    """Fail at once."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        raise KeyError("a name that nobody should read")
        yield


async def test_a_delegate_of_a_broken_kind_is_an_error_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, "_registered", {"broken": Broken})
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder")), says("Then without.")]}
    company = Company([agent("boss", "coder"), agent("coder", kind="broken")], lines)
    events = await company.events(scope_for())
    message = "The agent 'coder' failed. There was an error in the gateway."
    assert results(events) == [{"error": {"code": "internal_error", "message": message}}]
    assert collect(events).content == "Then without."


async def test_a_storage_that_does_not_answer_ends_the_whole_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder"))], "coder": [says("Done.")]}
    reader = FakeReader({("demo", "notes"): ["A passage."]})

    async def fail(*_: object) -> Any:
        raise StorageUnavailable("The storage did not answer in time; try again.")

    monkeypatch.setattr(reader, "retrieve", fail)
    company = Company([agent("boss", "coder"), agent("coder", rag_index="notes", rag_top_k=1)], lines, reader)
    events = await company.events(scope_for())
    check_events(events)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, StorageUnavailable)


async def test_a_delegate_reads_the_passages_of_its_own_index() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder", "tall gate")), says("Done.")], "coder": [says("Done.")]}
    reader = FakeReader({("demo", "notes"): ["Some-passage."]})
    company = Company([agent("boss", "coder"), agent("coder", rag_index="notes", rag_top_k=1)], lines, reader)
    await company.events(scope_for())
    assert any("Some-passage." in message.content for message in company.requests_of("coder")[0].messages)
    assert not any("Some-passage." in message.content for message in company.requests_of("boss")[0].messages)


async def test_the_token_must_allow_the_model_of_the_delegate() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder")), says("Done.")]}
    company = Company([agent("boss", "coder"), agent("coder", model="other")], lines)
    events = await company.events(scope_for(models=["talker"]))
    assert (error_codes(events), company.asked) == (["model_not_allowed"], ["boss", "boss"])


async def test_a_turn_that_uses_all_its_model_calls_tells_so_and_keeps_its_answer() -> None:
    lines: dict[str, list[Line]] = {"boss": [says("", task("coder")), says("Done.")], "coder": [says("So far.", SUM)]}
    company = Company([agent("boss", "coder"), agent("coder", max_turns=2)], lines)
    (result,) = results(await company.events(scope_for()))
    assert (result["answer"], result["finish_reason"]) == ("So far.", "max_turns")


class Hanging:
    """A model that begins to answer and hangs. ``closed`` is set when its connection is closed."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()

    async def answer(self) -> AsyncGenerator[ChatDelta, None]:
        try:
            yield ChatDelta("I be")
            self.asked.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


def hanging_company(hanging: Hanging) -> Company:
    """Return a company in which the delegate of a delegate hangs, after a call of its own."""
    lines: dict[str, list[Line]] = {
        "boss": [says("Let us see.", task("coder"), SUM), says("Done.")],
        "coder": [says("", task("helper")), says("Done.")],
        "helper": [says("", SUM), hanging.answer()],
    }
    return Company([agent("boss", "coder"), agent("coder", "helper"), agent("helper")], lines)


async def test_a_stop_closes_the_delegates_and_their_model_connections() -> None:
    hanging, signal, scope, tasks = Hanging(), StopSignal(), scope_for(), asyncio.all_tasks()
    company = hanging_company(hanging)
    turn = interruptible(company.run(scope), signal=signal, deadline=None, tally=scope.tally)
    running = asyncio.create_task(_drain(turn))
    async with asyncio.timeout(5):
        await hanging.asked.wait()
        await asyncio.sleep(0.05)  # the reader catches up with the events
        signal.stop()
        events = await running
    assert hanging.closed.is_set()
    assert asyncio.all_tasks() == tasks
    check_events(events, cut=True)
    last = events[-1]
    assert isinstance(last, TurnFinished)
    assert last.finish_reason is FinishReason.CANCELLED
    assert last.usage == audited_usage(scope)
    assert error_codes(events) == ["cancelled", None]
    assert [(by, tool, ok) for by, _, tool, ok in nested_ends(events)] == [
        ("helper", "calculator", True),
        ("coder", "delegate", False),
    ]
    assert company.asked == ["boss", "coder", "helper", "helper"]


async def test_a_turn_whose_delegate_runs_out_of_time_is_cut() -> None:
    hanging, scope, tasks = Hanging(), scope_for(), asyncio.all_tasks()
    company = hanging_company(hanging)
    turn = interruptible(company.run(scope), signal=StopSignal(), deadline=Deadline.after(1.5), tally=scope.tally)
    events = await _drain(turn)
    assert hanging.closed.is_set()
    assert asyncio.all_tasks() == tasks
    check_events(events, cut=True)
    assert collect(events).finish_reason is FinishReason.DEADLINE
    assert collect(events).usage == audited_usage(scope)


async def test_a_request_whose_delegate_runs_out_of_time_fails() -> None:
    hanging, tasks = Hanging(), asyncio.all_tasks()
    events = await hanging_company(hanging).events(scope_for(seconds=1.5))
    assert hanging.closed.is_set()
    assert asyncio.all_tasks() == tasks
    check_events(events)
    assert isinstance(events[-1], Failed)
    assert events[-1].error.code == "upstream_timeout"


def nested_company() -> Company:
    """Return a company in which two delegates run at the same time, and each has a delegate of its own."""
    lines: dict[str, list[Line]] = {
        "boss": [says("See.", task("coder"), task("writer")), says("Done.")],
        "coder": [says("", task("helper"), SUM), says("Done.")],
        "writer": [says("", SUM), says("Done.")],
        "helper": [says("", SUM), says("Done.")],
    }
    return Company([agent("boss", "coder", "writer"), agent("coder", "helper"), agent("writer"), agent("helper")], lines)


def check_stopped(company: Company, scope: Scope, events: Sequence[Event]) -> None:
    check_events(events, cut=True)
    assert collect(events).usage == audited_usage(scope)
    assert company.model.closed == len(company.model.requests)


async def test_a_turn_that_is_stopped_at_any_event_leaves_nothing_open() -> None:
    whole, tasks = len(await nested_company().events(scope_for())), asyncio.all_tasks()
    for place in range(1, whole):
        company, signal, scope, events = nested_company(), StopSignal(), scope_for(), list[Event]()
        async for event in interruptible(company.run(scope), signal=signal, deadline=None, tally=scope.tally):
            events.append(event)
            if len(events) == place:
                signal.stop()
        assert asyncio.all_tasks() == tasks
        check_stopped(company, scope, events)


async def test_a_turn_that_is_stopped_at_any_moment_leaves_nothing_open() -> None:
    ends, moment, tasks = set[FinishReason](), 0, asyncio.all_tasks()
    while FinishReason.STOP not in ends:
        company, signal, scope = nested_company(), StopSignal(), scope_for()
        running = asyncio.create_task(_drain(interruptible(company.run(scope), signal=signal, deadline=None, tally=scope.tally)))
        for _ in range(moment):
            await asyncio.sleep(0)
        signal.stop()
        events = await running
        assert asyncio.all_tasks() == tasks
        check_stopped(company, scope, events)
        ends.add(collect(events).finish_reason)
        moment += 1
    assert moment > 20
    assert ends == {FinishReason.CANCELLED, FinishReason.STOP}


async def _drain(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]
