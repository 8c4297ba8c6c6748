"""Side calls that fail in every way: no run fails, and its answer is that of the axes without calls."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from spass.agents.kinds.axes.side_calls import MAX_SIDE_CALLS
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.core.effects import CallError, Infer, Note
from spass.core.errors import ContextLengthExceeded, RateLimited, StorageUnavailable, UpstreamError, UpstreamTimeout
from spass.core.events import Status, TurnFinished
from spass.core.json import dump
from spass.core.messages import Json
from tests.unit.agents.driver_harness import ScriptedReply
from tests.unit.agents.kinds.operator_world import OperatorRun, OperatorWorld

pytestmark = pytest.mark.anyio

RUNS = 200
LONG: Json = {"rows": ["The valve was stuck, so the pump stopped. "] * 90}
EVERY_WAY: dict[str, Callable[[Infer], str | Exception]] = {
    "empty": lambda _: "",
    "blank": lambda _: "\n \t",
    "think text alone": lambda _: "<think>I wonder.</think>",
    "longer than what it shortens": lambda effect: effect.messages[-1].content + " and more",
    "not JSON": lambda _: "No " * 3000,
    "JSON of another shape": lambda _: dump({"result": [LONG] * 3}),
    "a list of nothing": lambda _: dump([None] * 3000),
    "an end in the middle": lambda _: '{"edges": [{"cause": "' + "x" * 9000,
    "500 causes": lambda _: dump({"edges": [{"cause": f"c{n}", "effect": "e" * 50} for n in range(500)]}),
    "deep JSON": lambda _: '{"edges":' * 500,
    "an error": lambda _: UpstreamError("The backend is down."),
    "no capacity": lambda _: RateLimited("Too many."),
    "no table": lambda _: StorageUnavailable("The table is gone."),
    "too long": lambda _: ContextLengthExceeded("Too long."),
    "an exception": lambda _: ZeroDivisionError(),
    "the deadline": lambda _: UpstreamTimeout("Too late."),
}
RESULTS: dict[str, Json] = {"search": LONG, "more": "It was wet. " * 400, "failing": {"error": "e" * 3000}}
NOTES = [Note(f"n{number}", f"Find the valve {number}", ends=(f"a{number}", "b")) for number in range(12)]


def replies(random: Random) -> list[ScriptedReply | Exception]:
    """Return the replies of an agent that calls tools at random and then answers."""
    steps = [random.choices(["search", "more", "failing", "clock"], k=random.randint(1, 3)) for _ in range(random.randint(1, 4))]
    return [*(ScriptedReply(f"Step {number}.", tuple(names)) for number, names in enumerate(steps)), ScriptedReply("Done.")]


def world(random: Random, aside: Callable[[Infer], str | Exception]) -> OperatorWorld:
    error = CallError("upstream_error", "Down.") if random.random() < 0.3 else None
    return OperatorWorld(replies(random), aside, RESULTS, NOTES[: random.choice([0, 1, 12])], "It was dry.", error)


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_a_failing_call_made_aside_is_named_and_the_run_continues(way: str) -> None:
    agent = MonitorOperativeAgent()
    run = await OperatorWorld(
        [ScriptedReply("", ("search",)), ScriptedReply("Done.")], EVERY_WAY[way], {"search": LONG}, NOTES[:3]
    ).run(agent)
    outcome = run.outcome
    assert (outcome.content, outcome.turns) == ("Done.", 2)
    purposes = {purpose for purpose, _ in run.side_calls}
    # Nothing is shorter than the 9,000 characters that a result has, so a summary may be a success.
    expected = {"retrieval_strategy"} if way == "the deadline" else {"retrieval_strategy", "memory_extraction"}
    assert expected <= purposes
    listed = outcome.metadata["side_calls"]
    assert isinstance(listed, list)
    assert all(isinstance(call, dict) and set(call) == {"purpose", "code", "message"} and call["message"] for call in listed)
    told = [event.detail for event in run.events if isinstance(event, Status)]
    assert told == [f"A call for {purpose} failed ({code}). The run continues without it." for purpose, code in run.side_calls]
    json.dumps(listed)


async def test_no_run_fails_and_each_answer_is_that_without_calls() -> None:
    failed: set[str] = set()
    for seed in range(RUNS):
        random = Random(seed)
        ways = [random.choice([*EVERY_WAY.values()]) for _ in range(3)]
        fail = partial(fail_at_random, ways, Random(seed))
        agent = MonitorOperativeAgent(
            memory_extraction="causality_graph" if seed % 2 else "structured_json", max_turns=random.choice([3, 25])
        )
        silent = replace(
            agent, observation_compression="truncate" if seed % 3 else "none", memory_extraction="none", retrieval_strategy="none"
        )
        run = await world(Random(seed), fail).run(agent, "Find the valve")
        plain = await world(Random(seed), lambda _: "").run(silent, "Find the valve")
        assert isinstance(run.events[-1], TurnFinished), seed
        assert answer_of(run) == answer_of(plain), seed
        failed |= {code for _, code in run.side_calls}
    assert {
        "empty_reply",
        "not_shorter",
        "unreadable_reply",
        "too_many_edges",
        "upstream_error",
        "upstream_timeout",
        "context_length_exceeded",
        "internal_error",
        "rate_limited",
        "storage_unavailable",
    } <= failed


def fail_at_random(ways: Sequence[Callable[[Infer], str | Exception]], random: Random, effect: Infer) -> str | Exception:
    return random.choice(ways)(effect)


def answer_of(run: OperatorRun) -> object:
    """Return the answer: its text, its steps, its finish reason, the whole results, and the next state."""
    outcome = run.outcome
    results = [(tool.call.name, RESULTS.get(tool.call.name) == tool.result, tool.ok) for tool in outcome.tool_calls]
    return outcome.content, outcome.turns, outcome.finish_reason, results, run.memory.states


async def test_after_a_call_that_ran_out_of_time_no_further_one_is_made() -> None:
    script: list[ScriptedReply | Exception] = [ScriptedReply("", ("search",) * 5), ScriptedReply("Done.")]
    run = await OperatorWorld(script, lambda _: UpstreamTimeout("Too late."), {"search": LONG}).run(MonitorOperativeAgent())
    assert len(run.asides) == 1
    assert run.side_calls == [("observation_compression", "upstream_timeout")]
    assert all("characters were dropped here" in text for text in run.results())


async def test_a_run_makes_two_hundred_calls_aside_at_most() -> None:
    script: list[ScriptedReply | Exception] = [ScriptedReply("", ("search",) * 30)]
    run = await OperatorWorld(script, lambda _: UpstreamError("Down."), {"search": LONG}).run(MonitorOperativeAgent(max_turns=10))
    assert len(run.asides) == MAX_SIDE_CALLS
    assert [code for _, code in run.side_calls] == ["upstream_error"] * MAX_SIDE_CALLS + ["too_many_calls"]
    assert run.outcome.metadata["max_turns_exceeded"]
