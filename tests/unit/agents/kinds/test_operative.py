"""The kind ``operative``: the state of the run before, the tool loop, and the next state."""

import json
from dataclasses import replace

import pytest

from spass.agents.kinds import AgentContext, user
from spass.agents.kinds.operative import OperativeAgent
from spass.core.effects import Answer, AssistantReply, CallTools, Infer, Note, Recalled, SearchNotes, SetState, ToolOutcome
from spass.core.messages import Json, Message, Role, ToolCall
from tests.unit.agents.driver_harness import ScriptedReply
from tests.unit.agents.kinds.operator_world import OperatorWorld, calling

pytestmark = pytest.mark.anyio

CONTEXT = AgentContext(
    (user("earlier"), Message(Role.ASSISTANT, "answer")), tools=("memory_store",), memory_results=("a passage",)
)


def store(arguments: str, *, ok: bool = True, name: str = "memory_store", key: str = "state") -> tuple[CallTools, ToolOutcome]:
    """Return a call and its outcome: the tool answers with the ``key``, without blanks around it."""
    call = ToolCall("c1", name, arguments)
    result: Json = {"key": key} if ok else {"error": {"code": "no_operator", "message": "There is no operator."}}
    return CallTools((call,)), ToolOutcome(call, {}, result, Message(Role.TOOL, json.dumps(result), tool_call_id="c1"), 1, ok)


def test_a_run_by_hand_recalls_the_state_calls_the_model_and_sets_the_next_state() -> None:
    steps = OperativeAgent(system_prompt="Report.").steps("What is new?", CONTEXT)
    assert next(steps) == SearchNotes("state", "key", 1)
    infer = steps.send(Recalled((Note("state", '{"input":"a","answer":"b"}'),)))
    assert infer == Infer(
        (
            Message(Role.SYSTEM, "Report."),
            *CONTEXT.conversation,
            user("a passage", data=True),
            user('{"input":"a","answer":"b"}', data=True, heading="## Previous state"),
            user("What is new?"),
        )
    )
    assert steps.send(AssistantReply("Nothing.")) == SetState({"input": "What is new?", "answer": "Nothing."})
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert end.value.value == Answer("Nothing.")


def test_the_first_run_has_no_state() -> None:
    steps = OperativeAgent().steps("Hi", AgentContext())
    next(steps)
    assert steps.send(Recalled()) == Infer((user("Hi"),))


def test_the_state_has_4000_characters_of_the_input_and_1000_of_the_answer() -> None:
    steps = OperativeAgent().steps("i" * 5000, AgentContext())
    next(steps)
    steps.send(Recalled())
    assert steps.send(AssistantReply("a" * 2000)) == SetState({"input": "i" * 4000, "answer": "a" * 1000})


def test_what_the_model_stores_under_the_key_state_is_the_state() -> None:
    steps = OperativeAgent().steps("Hi", AgentContext())
    next(steps)
    steps.send(Recalled())
    for content, key in (("one", "state"), ("two", " state\u2003")):
        step, outcome = store(json.dumps({"content": content, "key": key}))
        assert steps.send(AssistantReply("", step.calls)) == step
        assert steps.send((outcome,)) == SetState(content)
        steps.send(None)
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply("Done."))
    assert end.value.value == Answer("Done.")


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        store('{"content": "x", "key": "other"}', key="other"),
        store('{"content": "x", "key": "State"}', key="State"),
        store('{"content": "x"}', key="note-1"),
        store('{"content": "x", "key": "state"}', ok=False),
        store('{"content": "x", "key": "state"}', name="memory_write"),
        store('{"content": 1, "key": "state"}'),
        store("{"),
    ],
)
def test_another_call_does_not_set_the_state(step: CallTools, outcome: ToolOutcome) -> None:
    steps = OperativeAgent().steps("Hi", AgentContext())
    next(steps)
    steps.send(Recalled())
    steps.send(AssistantReply("", step.calls))
    assert isinstance(steps.send((outcome,)), Infer)
    assert steps.send(AssistantReply("Done.")) == SetState({"input": "Hi", "answer": "Done."})


async def test_a_run_that_has_made_all_its_model_calls_leaves_a_state_too() -> None:
    run = await OperatorWorld([ScriptedReply("I go on.", ("clock",))]).run(OperativeAgent(max_turns=2), "Go")
    assert run.outcome.metadata == {"max_turns_exceeded": True}
    assert (run.outcome.turns, run.outcome.content) == (2, "I go on.")
    assert run.memory.states == [{"input": "Go", "answer": "I go on."}]


async def test_long_results_stay_as_they_are() -> None:
    run = await OperatorWorld(calling("search"), results={"search": "x" * 9000}).run(OperativeAgent())
    assert run.results() == [f'"{"x" * 9000}"']
    assert (run.asides, run.memory.written) == ([], [])


def test_it_has_the_defaults_of_its_page() -> None:
    agent = OperativeAgent()
    assert (agent.max_turns, agent.temperature, agent.max_tokens, agent.operator_id) == (20, 0.3, 2048, None)
    assert (agent.accepts_tools, agent.multi_turn, agent.remembers, agent.system_prompt) == (True, True, True, "")
    assert replace(agent, operator_id="daily").operator_id == "daily"
