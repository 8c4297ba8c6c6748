"""The kinds that hand the whole turn to a foreign agent, by hand and with a driver whose foreign agent is scripted."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from spass.agents.driver import Driver
from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds import AgentContext
from spass.agents.kinds.base import ToolResult
from spass.agents.kinds.claude_code import ClaudeCodeAgent
from spass.agents.kinds.foreign import ForeignAgent
from spass.agents.kinds.openhands import OpenHandsAgent
from spass.agents.parameters import params_model, params_schema
from spass.agents.spec import file_model
from spass.core.effects import Answer, ForeignResult, ForeignRun, RunForeign
from spass.core.errors import KindUnavailable, UpstreamError
from spass.core.events import Event, Failed, TurnFinished, collect
from spass.core.json import dump
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall
from tests.unit.agents.driver_harness import ScriptedWorld, check_events
from tests.unit.agents.test_driver import check_answer, check_messages

pytestmark = pytest.mark.anyio

RESULTS: tuple[Json, ...] = (
    {"tool_name": "Bash", "arguments": '{"command": "ls"}', "content": "a.txt", "success": True},
    {"tool_name": "mcp tool!", "arguments": "no json", "content": "no such file", "success": False},
)
DONE = ForeignResult("Done.")
NOT_TEXT: Json = {"tool_name": "x", "arguments": {}, "content": "", "success": True}
BROKEN: tuple[Json, ...] = ("text", None, {}, {"tool_name": ""}, NOT_TEXT)


def spec_of(agent: ForeignAgent, input: str = "Fix it.", context: AgentContext | None = None) -> ForeignRun:
    """Return the only effect's spec, and check that its result becomes the answer."""
    steps = agent.steps(input, context or AgentContext())
    effect = next(steps)
    assert isinstance(effect, RunForeign)
    with pytest.raises(StopIteration) as end:
        steps.send(ForeignResult("Done.", metadata={"session_id": "s"}))
    assert end.value.value == Answer("Done.", metadata={"session_id": "s"})
    return effect.spec


def test_openhands_is_one_run_with_the_defaults_of_its_page() -> None:
    assert spec_of(OpenHandsAgent(workspace="/w")) == ForeignRun(
        "openhands", "Fix it.", "", "/w", 1800, temperature=0.7, max_tokens=1024
    )


def test_claude_code_is_one_run_with_the_defaults_of_its_page() -> None:
    assert spec_of(ClaudeCodeAgent(workspace="/w")) == ForeignRun("claude_code", "Fix it.", "", "/w", 300, None, "")


def test_every_parameter_is_in_the_run() -> None:
    agent = ClaudeCodeAgent(workspace="/w", timeout=5, session_id="a-1", allowed_tools=("Read",), system_prompt="Be brief.")
    assert spec_of(agent) == ForeignRun("claude_code", "Fix it.", "Be brief.", "/w", 5, ("Read",), "a-1")
    assert spec_of(replace(agent, allowed_tools=())).allowed_tools == ()
    other = OpenHandsAgent(workspace="/w", temperature=0.1, max_tokens=9, system_prompt="Be brief.")
    assert spec_of(other) == ForeignRun("openhands", "Fix it.", "Be brief.", "/w", 1800, temperature=0.1, max_tokens=9)


CONTEXT = AgentContext(
    (
        Message(Role.USER, "Hello"),
        Message(Role.ASSISTANT, "Hi", (ToolCall("c1", "Bash", '{"command": "ls"}'),)),
        Message(Role.TOOL, "a.txt", tool_call_id="c1"),
    ),
    memory_results=("A note.", {"b": 1}),
)


def test_conversation_and_data_precede_the_input_in_one_text() -> None:
    assert spec_of(OpenHandsAgent(), "Fix it.", CONTEXT).prompt == (
        '<conversation>\nuser: Hello\n\nassistant: Hi\n[Bash {"command": "ls"}]\n\nresult: a.txt\n</conversation>\n\n'
        '<data>\nA note.\n\n{"b":1}\n</data>\n\nFix it.'
    )


def test_a_continued_session_remembers_its_conversation_itself() -> None:
    prompt = spec_of(ClaudeCodeAgent(session_id="a-1"), "Fix it.", CONTEXT).prompt
    assert "Hello" not in prompt
    assert prompt.startswith("<data>\nA note.")
    assert "Hello" in spec_of(ClaudeCodeAgent(), "Fix it.", CONTEXT).prompt


def test_results_of_earlier_turns_are_shortened_in_the_prompt() -> None:
    context = AgentContext((Message(Role.ASSISTANT, "", (ToolCall("c", "a", "{}"),)), Message(Role.TOOL, "x" * 9000)))
    assert len(spec_of(OpenHandsAgent(), "?", context).prompt) < 1500


@pytest.mark.parametrize("kind", [OpenHandsAgent, ClaudeCodeAgent])
def test_a_key_is_a_value_for_python_alone(kind: type[ForeignAgent]) -> None:
    agent = kind(workspace="/w", api_key="sk-secret-0123")
    assert spec_of(agent).api_key == "sk-secret-0123"
    assert spec_of(replace(agent, system_prompt="x")).api_key == "sk-secret-0123"
    assert spec_of(kind(workspace="/w")).api_key == ""
    assert "sk-secret" not in repr(agent) + repr(spec_of(agent)) + str(RunForeign(spec_of(agent)))
    assert "api_key" not in {field.name for field in fields(kind)}
    assert "api_key" not in dump(params_schema(kind))
    assert "api_key" not in file_model(str(kind.needs)).model_fields
    with pytest.raises(ValueError, match="api_key"):
        params_model(kind).model_validate({"api_key": "sk-secret-0123"})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (OpenHandsAgent, {"timeout": 0}),
        (OpenHandsAgent, {"timeout": 1.5}),
        (OpenHandsAgent, {"timeout": 90_000}),
        (OpenHandsAgent, {"workspace": 1}),
        (OpenHandsAgent, {"session_id": ""}),
        (ClaudeCodeAgent, {"allowed_tools": "Read"}),
        (ClaudeCodeAgent, {"allowed_tools": [1]}),
        (ClaudeCodeAgent, {"session_id": None}),
    ],
)
def test_bad_values_are_refused(kind: type[ForeignAgent], values: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        params_model(kind).model_validate(values)


def test_a_list_of_tools_or_null_is_accepted() -> None:
    for value in (["Read", "Bash"], [], None):
        accepted = params_model(ClaudeCodeAgent).model_validate({"allowed_tools": value})
        assert getattr(accepted, "allowed_tools") == (None if value is None else tuple(value))  # noqa: B009


@dataclass
class ScriptedForeignAgent:
    """A foreign agent that gives ``result``, and counts its open runs."""

    result: ForeignResult | Exception = DONE
    seconds: float = 0
    specs: list[ForeignRun] = field(default_factory=list)
    open: int = 0

    async def run(self, spec: ForeignRun) -> ForeignResult:
        self.specs.append(spec)
        self.open += 1
        try:
            await asyncio.sleep(self.seconds)
            if isinstance(self.result, Exception):
                raise self.result
            return self.result
        finally:
            self.open -= 1

    def driver(self) -> Driver:
        world = ScriptedWorld([])
        return Driver(world, world.call_tools, world.scope, run_foreign=self.run)

    async def events(self, agent: ForeignAgent, context: AgentContext | None = None) -> list[Event]:
        events = [event async for event in self.driver().run(agent, "?", context or AgentContext())]
        check_events(events)
        return events


AGENTS = (OpenHandsAgent(workspace="/w"), ClaudeCodeAgent(workspace="/w"))


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_run_is_one_turn_with_the_content_as_its_message(agent: ForeignAgent) -> None:
    foreign = ScriptedForeignAgent(ForeignResult("Done.", metadata={"session_id": "s-1"}))
    events = await foreign.events(agent, AgentContext(metadata={"mine": 1}))
    outcome = collect(events)
    check_answer(events)
    assert (outcome.content, outcome.turns, outcome.finish_reason) == ("Done.", 1, FinishReason.STOP)
    assert outcome.metadata == {"mine": 1, "session_id": "s-1"}
    assert [message.content for message in outcome.messages] == ["Done."]


@pytest.mark.parametrize("agent", AGENTS)
async def test_calls_of_the_foreign_agent_are_recorded_with_their_results(agent: ForeignAgent) -> None:
    events = await ScriptedForeignAgent(ForeignResult("Done.", (*BROKEN, *RESULTS))).events(agent)
    outcome = collect(events)
    check_answer(events)
    check_messages(outcome.messages)
    assert (outcome.content, outcome.turns) == ("Done.", 1)
    calls = [(tool.call.name, tool.arguments, tool.result, tool.ok) for tool in outcome.tool_calls]
    failed = {"error": {"code": "tool_failed", "message": "no such file"}}
    assert calls == [("Bash", {"command": "ls"}, {"output": "a.txt"}, True), ("mcp_tool_", "no json", failed, False)]
    assert len({tool.call.id for tool in outcome.tool_calls}) == 2
    assert [message.role for message in outcome.messages] == [Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.ASSISTANT]


async def test_run_returns_content_tool_results_turns_and_metadata() -> None:
    foreign = ScriptedForeignAgent(ForeignResult("Done.", RESULTS[:1], {"session_id": "s-1"}))
    result = await ClaudeCodeAgent(workspace="/w", allowed_tools=("Read",), timeout=120).run(
        "x", AgentContext(), foreign.driver()
    )
    assert (result.content, result.turns, result.metadata) == ("Done.", 1, {"session_id": "s-1"})
    assert result.tool_results == (ToolResult("Bash", '{"output":"a.txt"}', success=True, duration_ms=0),)


@pytest.mark.parametrize("error", [UpstreamError("No."), KindUnavailable("No."), ZeroDivisionError()])
async def test_a_failed_run_ends_the_list_once(error: Exception) -> None:
    for agent in AGENTS:
        assert isinstance((await ScriptedForeignAgent(error).events(agent))[-1], Failed)


async def test_a_driver_without_foreign_agents_raises_a_runtime_error() -> None:
    world = ScriptedWorld([])
    for agent in AGENTS:
        with pytest.raises(RuntimeError, match="run_foreign"):
            await agent.run("x", AgentContext(), world.driver())


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_run_that_is_stopped_or_closed_leaves_nothing(agent: ForeignAgent) -> None:
    foreign, stop = ScriptedForeignAgent(seconds=60), StopSignal()
    driver = foreign.driver()
    asyncio.get_running_loop().call_later(0.05, stop.stop)
    turn = driver.run(agent, "?", AgentContext())
    events = [event async for event in interruptible(turn, signal=stop, deadline=None, tally=driver.scope.tally)]
    check_events(events, cut=True)
    assert isinstance(events[-1], TurnFinished)
    assert (foreign.open, len(foreign.specs)) == (0, 1)

    async def read() -> None:
        async with aclosing(foreign.driver().run(agent, "?", AgentContext())) as turn:
            async for _ in turn:
                pass

    task = asyncio.create_task(read())
    while foreign.open == 0:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert foreign.open == 0
