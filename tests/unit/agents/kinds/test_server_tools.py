"""Test the kind of chat completions by hand: the gateway's tools run, and calls of the client's tools end the loop."""

import pytest

from spass.agents.kinds import AgentContext, user
from spass.agents.kinds.registry import KINDS
from spass.agents.kinds.server_tools import ServerToolsAgent
from spass.core.effects import HIDDEN, Answer, AssistantReply, CallTools, Infer, Steps, ToolOutcome
from spass.core.messages import FinishReason, Message, Role, ToolCall

QUESTION = (Message(Role.SYSTEM, "Be brief."), user("6 * 7, and the weather?"))
CALCULATOR, WEATHER = ToolCall("a", "calculator", '{"expression": "6*7"}'), ToolCall("b", "weather", "{}")
RESULT = Message(Role.TOOL, '{"result": 42}', tool_call_id="a")
OUTCOME = ToolOutcome(CALCULATOR, {"expression": "6*7"}, {"result": 42}, RESULT, 1)


def start(agent: ServerToolsAgent) -> Steps:
    return agent.steps("", AgentContext(QUESTION))


def answer_of(steps: Steps, reply: AssistantReply) -> Answer:
    with pytest.raises(StopIteration) as end:
        steps.send(reply)
    answer = end.value.value
    assert isinstance(answer, Answer)
    return answer


def test_it_runs_server_tools_until_the_model_answers() -> None:
    steps = start(ServerToolsAgent(client_tools=frozenset({"weather"})))
    assert next(steps) == Infer(QUESTION)
    assert steps.send(AssistantReply("Let me see.", (CALCULATOR,))) == CallTools((CALCULATOR,))
    asked = Message(Role.ASSISTANT, "Let me see.", (CALCULATOR,))
    assert steps.send((OUTCOME,)) == Infer((*QUESTION, asked, RESULT))
    assert answer_of(steps, AssistantReply("It is 42.")) == Answer("It is 42.")


def test_a_call_of_a_client_tool_ends_the_loop_and_other_calls_are_dropped() -> None:
    steps = start(ServerToolsAgent(client_tools=frozenset({"weather"})))
    next(steps)
    assert answer_of(steps, AssistantReply("", (CALCULATOR, WEATHER, CALCULATOR))) == Answer("", calls=(WEATHER,))


def test_a_call_of_an_unknown_tool_is_left_to_the_gateway() -> None:
    unknown = ToolCall("c", "launch_rockets", "{}")
    steps = start(ServerToolsAgent(client_tools=frozenset({"weather"})))
    next(steps)
    assert steps.send(AssistantReply("", (unknown,))) == CallTools((unknown,))


def test_text_beside_json_is_hidden_but_the_model_sees_it() -> None:
    steps = start(ServerToolsAgent(answers_with_json=True))
    assert next(steps) == Infer(QUESTION, show=HIDDEN)
    steps.send(AssistantReply("Let me see.", (CALCULATOR,)))
    asked = Message(Role.ASSISTANT, "Let me see.", (CALCULATOR,))
    assert steps.send((OUTCOME,)) == Infer((*QUESTION, asked, RESULT), show=HIDDEN)
    assert answer_of(steps, AssistantReply('{"it": 42}', finish_reason=FinishReason.STOP)) == Answer('{"it": 42}')


def test_it_makes_ten_model_calls_and_is_not_a_kind_that_a_request_can_name() -> None:
    assert ServerToolsAgent().max_turns == 10
    assert not KINDS.contains("server_tools")
