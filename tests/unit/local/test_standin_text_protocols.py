"""The stand-in speaks the text protocols of agent kinds, whose prompts describe tools and markers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from local.standin.wire import complete
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.core.effects import CallTools, ToolOutcome, user
from spass.core.messages import Json, Message, Role, ToolCall, ToolSpec
from spass.tools.registry import load_tool
from tests.unit.local.standin_turns import run_turn

REACT = NativeReActAgent()
STRUCTURED = OrchestratorAgent(mode="structured")

RESULTS: Mapping[str, Json] = {
    "calculator": {"expression": "1791 * 17", "result": 30447},
    "current_datetime": {"weekday": "Sunday", "date": "2026-11-22", "time": "20:00:00", "timezone": "Europe/Berlin"},
    "rag_query": {"results": [{"id": "tower", "text": "Der Fernsehturm misst 368 Meter.", "score": 0.9}]},
    "weather": "It rains.",
}
PARAMETERS: Mapping[str, Json] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "description": "How far ahead."}, "place": {"type": "string"}},
    "required": ["days"],
}
WEATHER = ToolSpec("weather", "Tells the weather.\n\nExample: {}", PARAMETERS, category="test")


@dataclass
class Run:
    """A turn of a kind against the stand-in. ``replies`` are what the stand-in wrote."""

    agent: BaseAgent
    tools: Sequence[str] = ()
    conversation: tuple[Message, ...] = ()
    results: Mapping[str, Json] = field(default_factory=lambda: RESULTS)
    replies: list[str] = field(default_factory=list)
    calls: list[tuple[str, Json]] = field(default_factory=list)

    def ask(self, question: str) -> str:
        specs = tuple(WEATHER if name == "weather" else load_tool(name).spec() for name in self.tools)
        context = AgentContext(self.conversation, tuple(self.tools), specs=specs)
        turn = run_turn(self.agent, question, context, self._call_tools)
        self.replies += turn.replies
        return turn.answer

    def _call_tools(self, effect: CallTools) -> tuple[ToolOutcome, ...]:
        (call,) = effect.calls
        arguments = json.loads(call.arguments)
        self.calls.append((call.name, arguments))
        result = self.results[call.name]
        message = Message(Role.TOOL, result if isinstance(result, str) else json.dumps(result), tool_call_id="c")
        return (ToolOutcome(call, arguments, result, message, 1),)


both = pytest.mark.parametrize("agent", [REACT, STRUCTURED], ids=["react", "structured"])


@both
@pytest.mark.parametrize(
    ("question", "answer", "tool", "arguments"),
    [
        ("What is 1791 * 17?", "1791 * 17 = 30447", "calculator", {"expression": "1791 * 17"}),
        ("What is the weather in 3 days?", "It rains.", "weather", {"days": 3}),
        (
            "Wie hoch ist der Fernsehturm? Suche im Index berlin-info.",
            "368",
            "rag_query",
            {"index_id": "berlin-info", "query": "Wie hoch ist der Fernsehturm?"},
        ),
    ],
)
def test_the_tool_of_a_question_is_called_and_its_result_is_the_answer(
    agent: BaseAgent, question: str, answer: str, tool: str, arguments: dict[str, Json]
) -> None:
    run = Run(agent, [tool, "current_datetime"])
    shown = run.ask(question)
    assert answer in shown if tool == "rag_query" else answer == shown
    assert run.calls == [(tool, arguments)]


def test_replies_have_the_markers_of_the_protocol() -> None:
    react, structured = Run(REACT, ["calculator"]), Run(STRUCTURED, ["calculator"])
    react.ask("What is 1791 * 17?")
    structured.ask("What is 1791 * 17?")
    assert react.replies == [
        'Thought: I need a tool for that.\nAction: calculator\nAction Input: {"expression": "1791 * 17"}',
        "Thought: I can answer.\nFinal Answer: 1791 * 17 = 30447",
    ]
    assert structured.replies == [
        'THOUGHT: I need a tool for that.\nTOOL: calculator\nINPUT: {"expression": "1791 * 17"}',
        "THOUGHT: I can answer.\nFINAL_ANSWER: 1791 * 17 = 30447",
    ]


@both
def test_two_tools_are_called_one_after_the_other(agent: BaseAgent) -> None:
    run = Run(agent, ["calculator", "current_datetime"])
    answer = run.ask("What is 1791 * 17, and what time is it in Europe/Berlin?")
    assert [name for name, _ in run.calls] == ["calculator", "current_datetime"]
    assert answer == "1791 * 17 = 30447 Sunday, 2026-11-22, 20:00:00 (Europe/Berlin)"


@both
def test_the_error_of_a_tool_is_the_answer(agent: BaseAgent) -> None:
    run = Run(agent, ["calculator"], results={"calculator": {"error": {"code": "x", "message": "Division by zero."}}})
    assert run.ask("What is 1791 / 0?") == "The tool calculator: Division by zero."
    assert len(run.calls) == 1


@both
def test_without_a_reason_for_a_tool_it_answers(agent: BaseAgent) -> None:
    assert Run(agent, ["calculator"]).ask("My sport is tennis. What is my sport?") == "My sport is tennis."
    assert Run(agent).ask("My sport is tennis. What is my sport?") == "My sport is tennis."


@both
def test_the_history_of_calls_as_text_is_read(agent: BaseAgent) -> None:
    conversation = (
        user("My dog is called Bello. What is 1791 * 17?"),
        Message(Role.ASSISTANT, "I calculate.", (ToolCall("c1", "calculator", '{"expression": "1791 * 17"}'),)),
        Message(Role.TOOL, json.dumps(RESULTS["calculator"]), tool_call_id="c1"),
        Message(Role.ASSISTANT, "1791 * 17 = 30447"),
        user("My garden is in Potsdam."),
        Message(Role.ASSISTANT, "Noted."),
    )
    run = Run(agent, ["calculator"], conversation, {"calculator": {"expression": "2 * 3", "result": 6}})
    assert run.ask("How is my dog called?") == "My dog is called Bello."
    assert run.ask("What is 2 * 3?") == "2 * 3 = 6"
    assert run.calls == [("calculator", {"expression": "2 * 3"})]


def test_a_stop_sequence_and_a_token_limit_cut_the_text() -> None:
    prompt = "Reply in this form:\n\nThought: what you consider\nFinal Answer: your answer"
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": "My sport is tennis. What is my sport?"}]
    assert complete({"messages": messages, "stop": ["Final"]}).content == "Thought: I can answer.\n"
    assert complete({"messages": messages, "max_tokens": 5}).finish_reason == "length"


def test_a_prompt_that_only_mentions_the_words_gets_an_ordinary_answer() -> None:
    prompt = "Give your Final Answer: in one sentence, after a Thought: about it."
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": "My sport is tennis. What is my sport?"}]
    assert complete({"messages": messages}).content == "My sport is tennis."
