"""The mode ``structured`` of the kind ``orchestrator``, driven by hand."""

from typing import Final

import pytest

from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.core.effects import Answer, AssistantReply, CallTools, Infer, ToolOutcome, VisibleAfter, user
from spass.core.messages import Message, Role, ToolCall, ToolSpec

CALCULATOR: Final = ToolSpec(
    "calculator", "Evaluate.", {"properties": {"expression": {"type": "string"}}, "required": ["expression"]}, category="math"
)
CONTEXT: Final = AgentContext(tools=("calculator",), specs=(CALCULATOR,))


def test_bare_text_after_input_runs_the_tool_and_the_final_answer_ends() -> None:
    steps = OrchestratorAgent(mode="structured").steps("What is 2+2?", CONTEXT)
    first = next(steps)
    assert isinstance(first, Infer)
    assert (first.tools, first.show) == ("none", VisibleAfter(("FINAL_ANSWER:",), ("Observation:",)))
    for text in (
        "THOUGHT:",
        "TOOL:",
        "INPUT:",
        "FINAL_ANSWER:",
        "calculator (category: math)",
        "- expression (string, required)",
    ):
        assert text in first.messages[0].content

    call = ToolCall("", "calculator", '{"expression":"2+2"}')
    assert steps.send(AssistantReply("tool: calculator\ninput: 2+2")) == CallTools((call,), text="")
    result = Message(Role.TOOL, "4", tool_call_id="c1")
    second = steps.send((ToolOutcome(call, {"expression": "2+2"}, 4, result, 1),))
    assert isinstance(second, Infer)
    assert second.messages == (
        *first.messages,
        Message(Role.ASSISTANT, 'TOOL: calculator\nINPUT: {"expression":"2+2"}'),
        user("Observation: 4", data=True),
    )
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply("THOUGHT: good\nFINAL_ANSWER: 4"))
    assert end.value.value == Answer("4")


@pytest.mark.parametrize("text", ["It is 4.", "Input: 2+2\nOutput: 4", "THOUGHT: It is 4."])
def test_a_reply_without_a_tool_is_the_answer(text: str) -> None:
    steps = OrchestratorAgent(mode="structured").steps("What is 2+2?", CONTEXT)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply(text))
    assert end.value.value == Answer(text.removeprefix("THOUGHT: "))


def test_function_calling_is_the_mode_by_default() -> None:
    steps = OrchestratorAgent().steps("What is 2+2?", CONTEXT)
    assert next(steps) == Infer((user("What is 2+2?"),))
    reply = AssistantReply("THOUGHT: none\nTOOL: calculator\nINPUT: 2+2")
    with pytest.raises(StopIteration) as end:
        steps.send(reply)
    assert end.value.value == Answer(reply.content)
