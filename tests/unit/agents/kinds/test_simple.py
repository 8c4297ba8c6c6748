"""Test the kind ``simple``: it calls the model once, and never with tools."""

import pytest

from spass.agents.kinds import AgentContext, user
from spass.agents.kinds.simple import SimpleAgent
from spass.core.effects import Answer, AssistantReply, Infer
from spass.core.messages import Message, Role, ToolCall


def answer_of(agent: SimpleAgent, context: AgentContext) -> tuple[Infer, Answer]:
    steps = agent.steps("hello", context)
    effect = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply("hi", tool_calls=(ToolCall("1", "calculator", "{}"),)))
    assert isinstance(effect, Infer)
    return effect, end.value.value


def test_it_calls_the_model_once_without_tools_and_answers_with_the_reply() -> None:
    effect, answer = answer_of(SimpleAgent(), AgentContext(tools=("calculator",)))
    assert (effect, answer) == (Infer((user("hello"),), tools="none"), Answer("hi"))


def test_prompt_conversation_and_memory_precede_the_input() -> None:
    said = Message(Role.ASSISTANT, "earlier")
    context = AgentContext((user("before"), said), memory_results=("a passage", {"id": "d1"}))
    effect, _ = answer_of(SimpleAgent(system_prompt="Be brief."), context)
    assert effect.messages == (
        Message(Role.SYSTEM, "Be brief."),
        user("before"),
        said,
        user("a passage", data=True),
        user('{"id":"d1"}', data=True),
        user("hello"),
    )


def test_tool_calls_of_earlier_turns_are_sent_as_text() -> None:
    calls = (ToolCall("a", "calculator", '{"expression":"1+1"}'), ToolCall("b", "current_datetime", "{}"))
    conversation = (
        user("What is 1+1?"),
        Message(Role.ASSISTANT, "I calculate.", calls),
        Message(Role.TOOL, '{"result":2}', tool_call_id="a"),
        Message(Role.TOOL, '{"error":"failed"}', tool_call_id="b"),
        Message(Role.ASSISTANT, "", calls[:1]),
        Message(Role.TOOL, '{"result":2}', tool_call_id="a"),
        Message(Role.ASSISTANT, "2"),
    )
    effect, _ = answer_of(SimpleAgent(), AgentContext(conversation))
    assert not any(message.tool_calls or message.tool_call_id for message in effect.messages)
    assert [(message.role, message.content, message.data) for message in effect.messages[1:]] == [
        (Role.ASSISTANT, 'I calculate.\nCall a: calculator {"expression":"1+1"}\nCall b: current_datetime {}', False),
        (Role.USER, 'Result of the call a: {"result":2}', True),
        (Role.USER, 'Result of the call b: {"error":"failed"}', True),
        (Role.ASSISTANT, 'Call a: calculator {"expression":"1+1"}', False),
        (Role.USER, 'Result of the call a: {"result":2}', True),
        (Role.ASSISTANT, "2", False),
        (Role.USER, "hello", False),
    ]
