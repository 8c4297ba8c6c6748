"""The laws that hold for every kind: replay, overflow, failure and stop."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from spass.agents.kinds import KINDS, AgentContext, BaseAgent, ToolUsingAgent, user
from spass.agents.kinds.base import parameter
from spass.agents.kinds.foreign import ForeignAgent
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.core.effects import HIDDEN, Answer, AssistantReply, CallTools, Effect, Infer, MaxTurns, Note, ReportStatus, Steps
from spass.core.errors import ContextLengthExceeded, StorageUnavailable, UpstreamError
from spass.core.events import Failed, ToolCallFinished, collect
from spass.core.messages import FinishReason, Json, Message, Role, ToolSpec
from tests.unit.agents.driver_harness import NoteBook, Script, ScriptedReply, ScriptedWorld
from tests.unit.agents.test_driver import check_answer, check_messages

pytestmark = pytest.mark.anyio

TURNS = 500
SPECS = (
    ToolSpec("calculator", "Calculate.", {"type": "object", "properties": {"expression": {"type": "string"}}}),
    ToolSpec("failing", "Fail.", {"type": "object", "properties": {}}),
    ToolSpec("search", "Search.", {"type": "object", "properties": {}}),
)
RESULTS: dict[str, Json] = {"search": {"text": "The valve was stuck, so the pump stopped. " * 80}}
"""The results of tools that do not echo: one that is long enough to be shortened and to be remembered."""
NOTES = (("edge:1", "? a stuck valve", ("a stuck valve", "no flow")), ("plain", "what ? was", ()))
CONTEXT = AgentContext(
    conversation=(user("old"), Message(Role.ASSISTANT, "older")), tools=("calculator", "failing", "search"), specs=SPECS
)
SHORTER = AgentContext(conversation=(Message(Role.ASSISTANT, "in short"),), tools=CONTEXT.tools, specs=SPECS)


@dataclass(frozen=True, kw_only=True)
class AsideAgent(ToolUsingAgent):
    """Check each reply by a side call, which may fail, and hide some of the text."""

    max_turns: int = parameter(4, "Model calls of one turn, at most.", ge=1, le=100)

    def steps(self, input: str, context: AgentContext) -> Steps:
        messages = self.opening(input, context)
        try:
            while True:
                reply: AssistantReply = yield Infer(messages, show=HIDDEN if len(messages) % 2 else None)
                yield ReportStatus("I check the reply.")
                check: AssistantReply = yield Infer((user(reply.content),), "none", aside=True)
                if check.error is not None or not reply.tool_calls:
                    return Answer(f"{reply.content} ({check.content})", metadata={"checked": check.error is None})
                outcomes = yield CallTools(reply.tool_calls, text=check.content)
                messages = (*messages, *(user(outcome.message.content, data=True) for outcome in outcomes))
        except MaxTurns:
            return Answer("I give up.")


BUILT_IN = [key for key in list(KINDS.keys()) if KINDS.canonical(key) == key and not issubclass(KINDS.get(key), ForeignAgent)]
AGENTS: dict[str, Callable[..., BaseAgent]] = {
    **{key: KINDS.get(key) for key in BUILT_IN},
    "orchestrator structured": partial(OrchestratorAgent, mode="structured"),
    "monitor_operative by others": partial(
        MonitorOperativeAgent,
        observation_compression="truncate",
        memory_extraction="structured_json",
        retrieval_strategy="keyword",
        task_decomposition="hierarchical",
    ),
    "aside": AsideAgent,
}
"""Every kind that calls models, and one that makes side calls. ``test_foreign_kinds`` has the others."""

WRITTEN = (
    'Thought: hm\nAction: calculator\nAction Input: {"expression": "1"}',
    "Action: failing\nAction Input: {}\nAction: calculator",
    "Thought: known\nFinal Answer: 42",
    "Action: missing\nAction Input: {",
    "THOUGHT: hm\nTOOL: calculator\nINPUT: 2+2",
    "TOOL: failing\nFINAL_ANSWER: 7\nObservation: made up",
    "Observation: made up",
    "Thought:",
    "So.\n```python\nprint(1)\n```",
    "```repl\nfails\n```\n```python\ncalls\n```\nand\n```python\nFINAL(1)\n```",
    "```python\nwithout an end",
    '{"edges": [{"cause": "a stuck valve", "effect": "no flow", "confidence": 0.9, "evidence": "The valve was stuck."}]}',
    '{"entities": ["valve"], "facts": ["The pump stopped."]}',
    '{"grades": [3, 0], "better_query": "pump"}',
)
REASONS = (FinishReason.STOP, FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


def random_reply(rng: random.Random) -> ScriptedReply | Exception:
    if rng.random() < 0.04:
        return UpstreamError("Down.")
    text = rng.choice([*WRITTEN, "", "So.", "<think>no</think>So|me words"])
    calls = tuple(rng.choice(["calculator", "failing", "missing", "search"]) for _ in range(rng.choice([0, 0, 1, 1, 3])))
    return ScriptedReply(text, calls, rng.choice(REASONS))


def random_script(rng: random.Random) -> list[ScriptedReply | Exception]:
    return [random_reply(rng) for _ in range(rng.randint(1, 8))]


@dataclass
class Recorder:
    """Pass the effects of a kind on, and record each with the result that it was sent."""

    effects: list[tuple[Effect, Any]] = field(default_factory=list)
    answer: Answer | None = None

    def record(self, steps: Steps) -> Steps:
        effect = next(steps)
        try:
            while True:
                try:
                    result = yield effect
                except MaxTurns as stop:
                    self.effects.append((effect, stop))
                    effect = steps.throw(stop)
                else:
                    self.effects.append((effect, result))
                    effect = steps.send(result)
        except StopIteration as end:
            self.answer = answer = cast("Answer", end.value)
            return answer
        finally:
            steps.close()


@dataclass(frozen=True, kw_only=True)
class Recorded(BaseAgent):
    """Run another agent and record it."""

    agent: BaseAgent
    recorder: Recorder
    max_turns: int = 10

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.recorder.record(self.agent.steps(input, context))


def new_world(script: Script, tool_failure: Exception | None = None) -> ScriptedWorld:
    """Return a world with the memory of an operator, which has two notes and a state."""
    notes = {key: Note(key, text, ends=ends) for key, text, ends in NOTES}
    memory = NoteBook(notes, state='{"input": "?", "answer": "!"}')
    return ScriptedWorld(script, tool_failure, results=RESULTS, memory=memory)


def build(kind: str, rng: random.Random) -> BaseAgent:
    make, turns = AGENTS[kind], rng.randint(1, 5)
    agent = make()
    return replace(agent, max_turns=turns) if hasattr(agent, "max_turns") else agent  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_replay_of_the_results_yields_the_same_effects_and_answer(kind: str) -> None:
    answered = 0
    for seed in range(TURNS):
        rng = random.Random(seed)
        agent, recorder, world = build(kind, rng), Recorder(), new_world(random_script(rng))
        max_turns: int = getattr(agent, "max_turns", 10)  # a field of most kinds
        events = await world.run(Recorded(agent=agent, recorder=recorder, max_turns=max_turns), "?", CONTEXT)
        steps = agent.steps("?", CONTEXT)
        effect: object = next(steps)
        try:
            for recorded, result in recorder.effects:
                assert effect == recorded, f"seed {seed}"
                effect = steps.throw(MaxTurns()) if isinstance(result, MaxTurns) else steps.send(result)
        except StopIteration as end:
            effect = end.value
        except MaxTurns:
            effect = None
        assert recorder.answer is None or effect == recorder.answer, f"seed {seed}"
        steps.close()
        if recorder.answer is not None:
            answered += 1
            check_answer(events)
            check_messages(collect(events).messages)
    assert answered > TURNS / 2


@pytest.mark.parametrize("kind", AGENTS)
async def test_an_overflow_of_any_model_call_repeats_nothing(kind: str) -> None:
    rescued = 0
    for seed in range(60):
        rng = random.Random(seed)
        agent = build(kind, rng)
        script = [reply for reply in random_script(rng) if not isinstance(reply, Exception)] or [ScriptedReply("So.")]
        plain = new_world(script)
        expected = collect(await plain.run(agent, "?", CONTEXT))
        for number, effect in enumerate(plain.effects):
            world = new_world([*script[:number], ContextLengthExceeded("Too long."), *script[number:]])
            if number >= len(script):
                world = new_world(
                    [*script, *[script[-1]] * (number - len(script)), ContextLengthExceeded("Too long."), script[-1]]
                )
            shortened: list[int] = []

            async def shorten(shortened: list[int] = shortened) -> Sequence[Message]:
                shortened.append(1)
                return SHORTER.conversation

            events = await world.run(agent, "?", CONTEXT, shorten)
            if effect.aside:
                assert not shortened
                continue
            outcome = collect(events)
            assert shortened == [1]
            assert len(world.executed) == len(plain.executed), f"seed {seed}"
            assert world.memory == plain.memory, f"seed {seed}: a note or a state was written twice"
            assert (outcome.content, outcome.turns, outcome.metadata) == (expected.content, expected.turns, expected.metadata)
            assert [tool.call.name for tool in outcome.tool_calls] == [tool.call.name for tool in expected.tool_calls]
            check_answer(events)
            assert any("in short" in message.content for message in world.effects[number + 1].messages)
            assert not any("older" in message.content for message in world.effects[number + 1].messages)
            rescued += 1
    assert rescued >= 60


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("error", [StorageUnavailable("The table is gone."), ZeroDivisionError()])
async def test_an_error_of_any_performer_ends_the_list_once(kind: str, error: Exception) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        agent, script = build(kind, rng), random_script(rng)
        place = rng.randrange(len(script))
        world = new_world([*script[:place], error, *script[place + 1 :]])
        await world.run(agent, "?", CONTEXT)
        breaking = [reply if isinstance(reply, Exception) else replace(reply, calls=("calculator", "broken")) for reply in script]
        events = await new_world(breaking, tool_failure=error).run(agent, "?", CONTEXT)
        if any(isinstance(event, ToolCallFinished) and event.outcome.call.name == "broken" for event in events):
            assert isinstance(events[-1], Failed)


@pytest.mark.parametrize("kind", [key for key in BUILT_IN if KINDS.get(key).needs == "code"])
async def test_an_error_of_the_performer_of_code_ends_the_list_once(kind: str) -> None:
    world = new_world([ScriptedReply("```python\ncalls\nbroken\n```")], tool_failure=StorageUnavailable("The table is gone."))
    events = await world.run(KINDS.get(kind)(), "?", CONTEXT)
    assert isinstance(events[-1], Failed)
    assert len(world.executed) == 1


@pytest.mark.parametrize("kind", AGENTS)
async def test_closing_or_cancelling_the_driver_at_any_event_leaves_nothing_open(kind: str) -> None:
    tasks = len(asyncio.all_tasks())
    for seed in range(40):
        rng = random.Random(seed)
        agent, script = build(kind, rng), random_script(rng)
        length = len(await new_world(script).run(agent, "?", CONTEXT))
        for stop in range(1, length):
            world = new_world(script)
            events = world.driver().run(agent, "?", CONTEXT)
            for _ in range(stop):
                await anext(events)
            performed = len(world.effects) + len(world.executed)
            if stop % 2:
                await events.aclose()
            else:
                task = asyncio.create_task(_drain(events))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await events.aclose()
            assert world.open_streams == world.open_interpreters == 0
            assert len(world.effects) + len(world.executed) <= performed + (stop + 1) % 2
            assert len(asyncio.all_tasks()) == tasks


async def _drain(events: Any) -> None:
    async for _ in events:
        pass
