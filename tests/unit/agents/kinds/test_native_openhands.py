"""The kind native_openhands by hand: the pages of the input, the table of its replies, and what the model reads afterwards."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds import KINDS, AgentContext
from spass.agents.kinds.code_blocks import describe_result
from spass.agents.kinds.markers import ShowFilter
from spass.agents.kinds.native_openhands import NativeOpenHandsAgent
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallTools,
    Cell,
    CellResult,
    Effect,
    FetchPage,
    Infer,
    MaxTurns,
    Page,
    RunCode,
    Steps,
    ToolOutcome,
    user,
)
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolSpec
from tests.unit.agents.kinds.by_hand import messages_of

ADD = ToolSpec(
    "add", "Add numbers.", {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, category="math"
)
SAY = ToolSpec("say", "Say it.", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
CONTEXT = AgentContext(tools=("add", "say"), specs=(ADD, SAY))
BARE = AgentContext()


def begin(input: str = "?", context: AgentContext = CONTEXT, **fields: Any) -> tuple[Steps, Effect]:
    steps = NativeOpenHandsAgent(**fields).steps(input, context)
    return steps, next(steps)


def after(reply: AssistantReply | str, context: AgentContext = CONTEXT) -> tuple[Steps, Effect | Answer]:
    """Return the effect after the first reply, or the answer."""
    steps, _ = begin(context=context)
    try:
        return steps, steps.send(AssistantReply(reply) if isinstance(reply, str) else reply)
    except StopIteration as end:
        answer: Answer = end.value
        return steps, answer


def outcome(call: ToolCall, content: str = "5") -> ToolOutcome:
    return ToolOutcome(call, {}, 5, Message(Role.TOOL, content, tool_call_id=call.id), 1)


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall("", name, arguments)


def test_its_parameters_are_those_of_the_table() -> None:
    kind = KINDS.get("native_openhands")
    assert kind is NativeOpenHandsAgent
    agent = NativeOpenHandsAgent()
    assert (agent.max_turns, agent.temperature, agent.max_tokens, agent.system_prompt) == (3, 0.7, 2048, "")
    assert (agent.accepts_tools, agent.multi_turn, agent.needs) == (True, True, "code")


# --- The prompt and the pages ---


def test_the_prompt_lists_the_tools_and_explains_code_after_the_agents_own() -> None:
    _, effect = begin(system_prompt="Be brief.")
    system = messages_of(effect)[0].content
    assert system.startswith("Be brief.\n\n")
    for part in (
        "```python",
        "Output:",
        "Action:",
        "Action Input:",
        "add (category: math): Add numbers.",
        "- x (integer, required)",
        "say: ",
    ):
        assert part in system
    assert isinstance(effect, Infer)
    assert effect.tools == "offered"


def test_without_tools_the_prompt_explains_code_alone() -> None:
    _, effect = begin(context=BARE)
    system = messages_of(effect)[0].content
    assert "```python" in system
    assert "Action" not in system


def test_the_pages_of_the_input_follow_it_as_data_or_with_the_reason() -> None:
    text = "Compare example.com, http://a.org/x and 127.0.0.1 with https://b.net and c.gov."
    steps, effect = begin(text)
    pages = [Page("x" * 9000), Page(error="The host has no public address."), Page("Last.")]
    for url, page in zip(["example.com", "http://a.org/x", "https://b.net"], pages, strict=True):
        assert effect == FetchPage(url)
        effect = steps.send(page)
    *_, question, first, second, third = messages_of(effect)
    assert question == user(text)
    assert first == user("The page example.com:\n\n" + "x" * 4000, data=True)
    assert second == user("The page http://a.org/x:\n\n[It could not be read. The host has no public address.]", data=True)
    assert third == user("The page https://b.net:\n\nLast.", data=True)


def test_only_the_input_has_pages_and_not_what_comes_with_it() -> None:
    given_text = "See https://a.com/secret"
    context = AgentContext((user(given_text), Message(Role.ASSISTANT, given_text)), memory_results=(given_text,))
    steps, effect = begin("What is there?", context, system_prompt=given_text)
    assert isinstance(effect, Infer)
    assert isinstance(steps.send(AssistantReply("```python\nprint('https://a.com')\n```")), RunCode)
    assert isinstance(steps.send(CellResult("https://a.com")), Infer)


# --- The table of replies ---


def test_native_calls_all_run_and_code_beside_them_does_not() -> None:
    calls = (ToolCall("c1", "add", "{}"), ToolCall("c2", "say", "{}"))
    steps, effect = after(AssistantReply("I add.\n```python\nprint(1)\n```\nAction: say", calls))
    assert effect == CallTools(calls, "I add.")
    messages = messages_of(steps.send((outcome(calls[0]), outcome(calls[1]))))
    assert messages[-3:] == (
        Message(Role.ASSISTANT, "I add.", calls),
        Message(Role.TOOL, "5", tool_call_id="c1"),
        Message(Role.TOOL, "5", tool_call_id="c2"),
    )


def test_blocks_run_in_order_and_the_model_reads_their_outputs() -> None:
    steps, effect = after("First:\n```python\nx = 1\n```\nthen\n```py\nprint(x)\n```\nIt prints 1.")
    assert effect == RunCode(Cell("x = 1"), "First:")
    assert steps.send(CellResult("")) == RunCode(Cell("print(x)"), "")
    messages = messages_of(steps.send(CellResult("1\n", "NameError: y")))
    assert messages[-4:] == (
        Message(Role.ASSISTANT, "First:\n\n```python\nx = 1\n```"),
        describe_result(CellResult("")),
        Message(Role.ASSISTANT, "```python\nprint(x)\n```"),
        describe_result(CellResult("1\n", "NameError: y")),
    )


@pytest.mark.parametrize(
    ("reply", "codes", "said"),
    [
        ("```python\na", ["a"], ""),
        ("```python\na\n```\n```bash\nb\n```\n```python\nc\n```", ["a", "c"], ""),
        ("Action: add\nAction Input: {}\n```python\na\n```", ["a"], ""),
        ("I add.\n<tool_call>{}</tool_call>\n```python\na\n```", ["a"], "I add."),
        ("Thought: I add.\n```python\na\n```\nFinal Answer: 5", ["a"], "I add."),
        ("So.\nFinal Answer: 5\n```python\na\n```", ["a"], "So."),
        (
            "```python\ns = '''\nAction: add\nObservation: 5\nFinal Answer: 6\n<tool_call>\n'''\n```",
            ["s = '''\nAction: add\nObservation: 5\nFinal Answer: 6\n<tool_call>\n'''"],
            "",
        ),
        ("```python\na\n```\nObservation: 5\n```python\nb\n```", ["a"], ""),
        ("\n".join(f"```python\n{number}\n```" for number in range(5)), ["0", "1", "2", "3", "4"], ""),
    ],
)
def test_blocks_count_more_than_written_calls(reply: str, codes: list[str], said: str) -> None:
    steps, effect = after(reply)
    for number, code in enumerate(codes):
        assert effect == RunCode(Cell(code), "" if number else said)
        effect = steps.send(CellResult(""))
    assert isinstance(effect, Infer)


def test_after_32_blocks_the_model_reads_how_many_did_not_run() -> None:
    steps, effect = after("```python\na\n```\n" * 35)
    for _ in range(32):
        assert isinstance(effect, RunCode)
        effect = steps.send(CellResult("1"))
    assert messages_of(effect)[-1] == user("3 more blocks of your reply did not run. Write fewer in one reply.")


@pytest.mark.parametrize(
    ("reply", "called", "said"),
    [
        ('Action: add\nAction Input: {"x": 1}', call("add", '{"x": 1}'), ""),
        ("I add.\n\nAction: add\nAction Input: {'x': 1}\nObservation: 5\nFinal Answer: 5", call("add", '{"x":1}'), "I add."),
        ("thought: Hm.\naction: ADD\naction input: {}", call("add"), "Hm."),
        ("Like this:\n```\nAction: add\nAction Input: {}\n```", call("add"), "Like this:\n```"),
        ("Action: say\nAction Input: hello", call("say", '{"text":"hello"}'), ""),
        ("Action: missing tool\nAction Input: {", call("missing_tool", "{"), ""),
        ("Action: add\nAction Input: {}\nAction: say\nAction Input: x", call("add"), ""),
        ('<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>', call("add", '{"x":1}'), ""),
        ('I add.\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>\n', call("add", '{"x":1}'), "I add."),
        ('<tool_call>{"name": "add", "arguments": "{\\"x\\": 1}"}', call("add", '{"x": 1}'), ""),
        ("<tool_call>{'name': 'Add'}</tool_call>", call("add"), ""),
        ('<tool_call>```json\n{"name": "add", "arguments": {}}\n```</tool_call>', call("add"), ""),
        (
            '<TOOL_CALL>{"name": "say", "arguments": {"text": "</tool_call>"}}</tool_call>',
            call("say", '{"text":"</tool_call>"}'),
            "",
        ),
        ('<tool_call>{"name": "add", "arguments": {}}</tool_call>\n<tool_call>{"name": "say"}</tool_call>', call("add"), ""),
        ('Action: add\nAction Input: {}\n<tool_call>{"name": "say"}</tool_call>', call("add"), ""),
        ('<tool_call>{"name": "add"}</tool_call>\nAction: say\nAction Input: x', call("add"), ""),
        ('Thought: I add.\n<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', call("unknown"), "I add."),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', call("add", "[1]"), ""),
    ],
)
def test_a_written_call_runs_and_its_result_is_an_observation(reply: str, called: ToolCall, said: str) -> None:
    steps, effect = after(reply)
    assert effect == CallTools((called,), said)
    *_, written, result = messages_of(steps.send((outcome(ToolCall("c1", called.name, called.arguments)),)))
    action = f"Action: {called.name}\nAction Input: {called.arguments}"
    assert written == Message(Role.ASSISTANT, f"{said}\n{action}" if said else action)
    assert result == user("Observation: 5", data=True)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is 5.", "It is 5."),
        ("", ""),
        ('FINAL("x")', 'FINAL("x")'),
        ("```js\nprint(1)\n```\nThat was JavaScript.", "```js\nprint(1)\n```\nThat was JavaScript."),
        ("So ```python\na\n```", "So ```python\na\n```"),
        ("Thought: I know.\nFinal Answer: 5", "5"),
        ("Action: add\nAction Input: {}\nFinal Answer: 5", "5"),
        ('<tool_call>{"name": "add"}</tool_call>\nFinal Answer: 5', "5"),
        ("Final Answer: 5\nObservation: 6", "5"),
        ("It is 5.\nObservation: 6\n```python\na\n```\n<tool_call>", "It is 5."),
        ("Use <tool_call> for calls.", "Use <tool_call> for calls."),
    ],
)
def test_a_reply_with_none_of_these_is_the_answer(reply: str, answer: str) -> None:
    assert after(reply)[1] == Answer(answer)


@pytest.mark.parametrize("reply", ["Action: buy milk", '<tool_call>{"name": "add"}</tool_call>', "So:\nAction:", "<tool_call>"])
def test_an_agent_without_tools_has_no_written_calls(reply: str) -> None:
    assert after(reply, BARE)[1] == Answer(reply)


@pytest.mark.parametrize(
    "reply",
    ["I add.\nAction:", "I add.\n<tool_call>add(1)</tool_call>", 'I add.\n<tool_call>{"name": ""}', "I add.\n<tool_call>[1]"],
)
def test_a_call_that_cannot_be_read_is_corrected(reply: str) -> None:
    _, effect = after(reply)
    *_, said, correction = messages_of(effect)
    assert said == Message(Role.ASSISTANT, "I add.")
    assert correction.content.startswith("Observation: Your reply has no answer and no complete call.")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("I add.\n```python\na\n```\n```python\nb", "I add."),
        ("I add.\n```python\na\n```", "I add."),
        ("I add.\nAction: add\nAction Input: {", "I add."),
        ('<tool_call>{"name": "add"', ""),
        ("It is 5 and", "It is 5 and"),
    ],
)
def test_code_and_calls_of_a_reply_that_was_cut_off_are_dropped(reply: str, answer: str, reason: FinishReason) -> None:
    assert after(AssistantReply(reply, finish_reason=reason))[1] == Answer(answer)


def test_at_max_turns_the_answer_is_the_last_output_or_text() -> None:
    for reply, result, answer in (
        ("I add.\n```python\na\n```", CellResult("7\n"), "7\n"),
        ("I add.\n```python\na\n```", CellResult(""), "I add."),
        ("```python\na\n```", CellResult(""), ""),
    ):
        steps, _ = after(reply)
        steps.send(result)
        with pytest.raises(StopIteration) as end:
            steps.throw(MaxTurns())
        assert end.value.value == Answer(answer)


def test_earlier_turns_are_text_in_the_form_in_which_the_model_writes() -> None:
    cell = ToolCall("c1", "code_interpreter", json.dumps({"code": "print(1)"}))
    history = (
        user("Old."),
        Message(Role.ASSISTANT, "I print.", (cell,)),
        Message(Role.TOOL, json.dumps({"output": "1\n", "error": None, "truncated": 0}), tool_call_id="c1"),
        Message(Role.ASSISTANT, "I add.", (ToolCall("c2", "add", "{}"),)),
        Message(Role.TOOL, "5", tool_call_id="c2"),
        Message(Role.ASSISTANT, "It is 5."),
    )
    _, effect = begin(context=AgentContext(history, CONTEXT.tools, specs=CONTEXT.specs))
    assert messages_of(effect)[1:-1] == (
        user("Old."),
        Message(Role.ASSISTANT, "I print.\n\n```python\nprint(1)\n```"),
        user("Output: 1", data=True),
        Message(Role.ASSISTANT, "I add.\nAction: add\nAction Input: {}"),
        user("Observation: 5", data=True),
        Message(Role.ASSISTANT, "It is 5."),
    )


# --- What is shown ---

PARTS = (
    *(
        "```python\n",
        "```\n",
        "````python\n",
        "~~~python\n",
        "``` py\n",
        "```bash\n",
        "Action: add\n",
        "Action Input: {}\n",
        "<tool_call>",
    ),
    *(
        "</tool_call>\n",
        "Observation: 5\n",
        "Final Answer: ",
        "Thought: ",
        "**Action:** add\n",
        "word ",
        "\n",
        " ",
        "SECRET = 1\n",
        "Action:",
    ),
)
REPLIES = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@given(reply=REPLIES, size=st.integers(1, 9), has_tools=st.booleans())
def test_shown_text_has_no_code_and_begins_what_is_recorded(reply: str, size: int, has_tools: bool) -> None:
    context = CONTEXT if has_tools else BARE
    _, first = begin(context=context)
    assert isinstance(first, Infer)
    show_filter = ShowFilter(first.show)
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    shown = "".join(map(show_filter.feed, pieces)) + show_filter.flush()
    _, step = after(reply, context)
    assert not any(
        shown.casefold().startswith(mark) or f"\n{mark}" in shown.casefold() for mark in ("```python", "action:", "<tool_call>")
    )
    match step:
        case RunCode(text=said) | CallTools(text=said) if "```" not in shown:  # the words have no fence that stays open
            assert said is not None
            assert said.startswith(shown)
        case Answer(content=content) if not any(mark in reply for mark in ("Final", "Thought", "Action", "tool_call")):
            assert content.startswith(shown)
        case _:
            pass
