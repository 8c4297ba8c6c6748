"""The kind ``native_react``, driven by hand: no event loop, no server, no model."""

from typing import Final

import pytest

from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.protocols import REACT
from spass.agents.react import ReActAgent
from spass.core.effects import Answer, AssistantReply, CallTools, Infer, MaxTurns, Steps, ToolOutcome, VisibleAfter, user
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolSpec
from tests.unit.agents.kinds.by_hand import answer, messages_of, reply

CALCULATOR: Final = ToolSpec(
    "calculator",
    "Evaluate an expression.",
    {
        "type": "object",
        "properties": {
            "expression": {"type": "string", "description": "What to evaluate."},
            "digits": {"type": "integer", "default": 3},
        },
        "required": ["expression"],
    },
    category="math",
)
CLOCK: Final = ToolSpec("clock", "Tell the time.", {"type": "object", "properties": {}})
CONTEXT: Final = AgentContext(tools=("calculator", "clock"), specs=(CALCULATOR, CLOCK))


def outcome(call: ToolCall, text: str = "16.0") -> tuple[ToolOutcome, ...]:
    return (ToolOutcome(call, {}, text, Message(Role.TOOL, text, tool_call_id="c1"), 3),)


def start(context: AgentContext = CONTEXT, system_prompt: str = "Be brief.") -> tuple[Steps, Infer]:
    steps = NativeReActAgent(system_prompt=system_prompt).steps("What is sqrt(256)?", context)
    effect = next(steps)
    assert isinstance(effect, Infer)
    return steps, effect


def test_the_first_model_call_has_the_tools_in_its_prompt_only() -> None:
    _, effect = start()
    assert (effect.tools, effect.show) == ("none", VisibleAfter(("Final Answer:",), ("Observation:",)))
    system, question = effect.messages
    assert question == user("What is sqrt(256)?")
    assert system.role is Role.SYSTEM
    assert system.content.startswith("Be brief.\n\n")
    for text in ("Thought:", "Action:", "Action Input:", "Final Answer:", "Observation:"):
        assert text in system.content
    assert system.content.endswith(
        """\
calculator (category: math): Evaluate an expression.
Parameters:
- expression (string, required): What to evaluate.
- digits (integer, optional): {"default":3}

clock: Tell the time.
Parameters: none"""
    )


def test_without_a_system_prompt_or_tools_the_protocol_is_the_prompt() -> None:
    _, effect = start(AgentContext(), system_prompt=" ")
    assert effect.messages[0].role is Role.SYSTEM
    assert effect.messages[0].content.startswith("Reply in this form:")
    assert "Action" not in effect.messages[0].content


def test_a_call_runs_and_its_result_is_an_observation_for_the_next_reply() -> None:
    steps, first = start()
    called = reply(steps, 'thought: I need it\nACTION: calculator\nAction input: {"expression": "sqrt(256)"}')
    call = ToolCall("", "calculator", '{"expression": "sqrt(256)"}')
    assert called == CallTools((call,), text="I need it")
    second = steps.send(outcome(call))
    assert messages_of(second) == (
        *first.messages,
        Message(Role.ASSISTANT, 'Thought: I need it\nAction: calculator\nAction Input: {"expression": "sqrt(256)"}'),
        user("Observation: 16.0", data=True),
    )
    assert answer(steps, "final answer: 16") == Answer("16")


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("Action: calculator\nAction Input: 2+2", "calculator", '{"expression":"2+2"}'),
        ("Action: CALCULATOR\nAction Input: {'expression': '2+2'}", "calculator", '{"expression":"2+2"}'),
        ("Action: clock", "clock", "{}"),
        ("Action: clock\nAction Input:", "clock", "{}"),
        ("Action: calculator", "calculator", "{}"),
        ('Action: calculator\nAction Input: {"expression": "2', "calculator", '{"expression": "2'),
        ("Action: clock\nAction Input: now", "clock", "now"),
        ("Action: clock\nI wait.", "clock", "I wait."),
        ("Action: weather\nAction Input: Berlin", "weather", "Berlin"),
        ('Action: calculator("2+2")\nAction Input: {}', "calculator__2_2__", "{}"),
        (f"Action: {'x' * 500}\nAction Input: {{}}", "x" * 64, "{}"),
    ],
)
def test_every_written_call_is_made_with_what_the_model_wrote(text: str, name: str, arguments: str) -> None:
    steps, _ = start()
    assert reply(steps, text) == CallTools((ToolCall("", name, arguments),), text="")


def test_the_model_reads_the_error_of_a_call_and_may_correct_it() -> None:
    steps, _ = start()
    reply(steps, "Action: weather\nAction Input: Berlin")
    error = '{"error": {"code": "tool_not_found", "message": "There is no tool \'weather\'."}}'
    assert messages_of(steps.send(outcome(ToolCall("c1", "weather", "Berlin"), error)))[-1] == user(
        f"Observation: {error}", data=True
    )
    assert isinstance(reply(steps, "Action: clock"), CallTools)


def test_an_imagined_observation_is_not_sent_back() -> None:
    steps, _ = start()
    called = reply(steps, "Thought: I\nAction: clock\nAction Input: {}\nObservation: noon\nFinal Answer: noon")
    assert called == CallTools((ToolCall("", "clock", "{}"),), text="I")
    after = messages_of(steps.send(outcome(ToolCall("c1", "clock", "{}"), "midnight")))
    assert "noon" not in "".join(message.content for message in after)
    assert answer(steps, "Final Answer: midnight\nObservation: noon") == Answer("midnight")


@pytest.mark.parametrize(
    "text", ["Thought:", "Observation: 4", "Thought: x\nAction:", 'Thought: x\nAction Input: {"expression": "2"}', "Action: ``"]
)
def test_a_reply_that_makes_no_sense_is_answered_with_the_format(text: str) -> None:
    steps, first = start()
    after = messages_of(reply(steps, text))
    assert after[: len(first.messages)] == first.messages
    assert not after[-1].data  # the text is the kind's own, and models are told not to obey data
    assert after[-1].content.startswith("Observation: Your reply has no answer")
    assert all(message.content for message in after)
    assert answer(steps, "Final Answer: 4") == Answer("4")


def test_calls_of_a_model_that_was_offered_no_tools_are_not_made() -> None:
    steps, _ = start()
    asked = steps.send(AssistantReply("", (ToolCall("c1", "clock", "{}"),)))
    assert messages_of(asked)[-1].content.startswith("Observation: Your reply has no answer")


@pytest.mark.parametrize(
    "text", ["Hello there.", "Thought: Hello there.", "FINAL ANSWER: Hello there.", "**Final Answer:** Hello there."]
)
def test_a_reply_without_a_call_is_the_answer(text: str) -> None:
    steps, _ = start()
    assert answer(steps, text) == Answer("Hello there.")


def test_an_empty_reply_is_an_empty_answer() -> None:
    steps, _ = start()
    assert answer(steps, " \n") == Answer("")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_a_call_in_a_reply_that_was_cut_off_is_dropped(reason: FinishReason) -> None:
    steps, _ = start()
    assert answer(steps, "Thought: I delete it\nAction: clock\nAction Input: /home/al", reason) == Answer("I delete it")
    steps, _ = start()
    assert answer(steps, "Final Answer: It is", reason) == Answer("It is")


def test_at_max_turns_the_answer_is_what_the_model_said_last() -> None:
    steps, _ = start()
    reply(steps, "Thought: I look\nAction: clock")
    steps.send(outcome(ToolCall("c1", "clock", "{}"), "noon"))
    reply(steps, "Action: clock")
    with pytest.raises(StopIteration) as end:
        steps.throw(MaxTurns())
    assert end.value.value == Answer("I look")


def test_a_history_with_tool_calls_reaches_the_model_as_text() -> None:
    call = ToolCall("c1", "calculator", '{"expression": "2+2"}')
    history = (
        user("And 2+2?"),
        Message(Role.ASSISTANT, "I add.", (call,)),
        Message(Role.TOOL, "4", tool_call_id="c1"),
        Message(Role.ASSISTANT, "It is 4."),
    )
    _, effect = start(AgentContext(conversation=history, specs=(CALCULATOR,), memory_results=("a note", {"k": 1})))
    assert effect.messages[1:] == (
        user("And 2+2?"),
        Message(Role.ASSISTANT, 'Thought: I add.\nAction: calculator\nAction Input: {"expression": "2+2"}'),
        user("Observation: 4", data=True),
        Message(Role.ASSISTANT, "Final Answer: It is 4."),
        user("a note", data=True),
        user('{"k":1}', data=True),
        user("What is sqrt(256)?"),
    )


def test_the_steps_of_a_turn_are_the_same_when_they_are_replayed() -> None:
    call = ToolCall("c1", "clock", "{}")
    results = (AssistantReply("Thought: a\nAction: clock"), outcome(call), AssistantReply("Thought:"))
    runs = []
    for _ in range(2):
        steps, first = start()
        runs.append([first, *(steps.send(result) for result in results), answer(steps, "Final Answer: b")])
    assert runs[0] == runs[1]


def test_react_is_the_short_name_of_the_kind() -> None:
    assert ReActAgent is NativeReActAgent
    assert (NativeReActAgent().max_turns, NativeReActAgent().temperature, NativeReActAgent().max_tokens) == (10, 0.7, 1024)
    assert REACT.final == "Final Answer:"
