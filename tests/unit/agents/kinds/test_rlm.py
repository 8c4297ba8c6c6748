"""The kind ``rlm``, driven by hand: no event loop, no server, no model and no interpreter."""

import json
from collections.abc import Sequence
from typing import Final

import pytest

from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.rlm import RLM_SYSTEM_PROMPT, RLMAgent
from spass.core.effects import (
    HIDDEN,
    Answer,
    AssistantReply,
    Cell,
    CellResult,
    Infer,
    MaxTurns,
    Queries,
    RunCode,
    Steps,
    user,
)
from spass.core.json import dump
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall, ToolSpec
from tests.unit.agents.kinds.by_hand import answer, reply

CALCULATOR: Final = ToolSpec(
    "calculator",
    "Evaluate an expression.",
    {"type": "object", "properties": {"expression": {"type": "string", "description": "What to evaluate."}}},
    category="math",
)
QUERIES: Final = Queries(None, 0.3, 1024, 100)


def block(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


def start(
    *memory_results: Json, agent: RLMAgent | None = None, conversation: Sequence[Message] = (), specs: tuple[ToolSpec, ...] = ()
) -> tuple[Steps, Infer]:
    context = AgentContext(tuple(conversation), memory_results=memory_results, specs=specs)
    steps = (agent or RLMAgent()).steps("How many?", context)
    effect = next(steps)
    assert isinstance(effect, Infer)
    return steps, effect


def run(steps: Steps, text: str) -> RunCode:
    """Return the cell that a reply runs."""
    effect = reply(steps, text)
    assert isinstance(effect, RunCode)
    return effect


def system_prompt(effect: Infer) -> str:
    first = effect.messages[0]
    assert first.role is Role.SYSTEM
    return first.content


def test_the_first_call_sends_no_tools_and_shows_nothing() -> None:
    _, effect = start("abc")
    assert effect == Infer(effect.messages, "none", show=HIDDEN)
    system, question = effect.messages
    assert (system.role, question) == (Role.SYSTEM, user("How many?"))


@pytest.mark.parametrize(
    "word",
    ["```python", "`context`", "llm_query(prompt)", "llm_batch(prompts)", "64", "[error: <code>]", "LLMError", "FINAL(value)"],
)
def test_the_prompt_explains_everything_that_code_can_use(word: str) -> None:
    assert word in RLM_SYSTEM_PROMPT
    assert system_prompt(start("abc")[1]).startswith(RLM_SYSTEM_PROMPT)


@pytest.mark.parametrize(
    ("memory_results", "value", "description"),
    [
        (("one\ntwo",), "one\ntwo", "a str of 7 characters in 2 lines"),
        (("",), "", "a str of 0 characters in 1 line"),
        ((), [], "an empty list: there is no data beside the question"),
        (({"secret": 1},), [{"secret": 1}], "a list of 1 item: a dict of 1 key"),
        (([1, 2],), [[1, 2]], "a list of 1 item: a list of 2 items"),
        (("one", "two"), ["one", "two"], "a list of 2 items: a str of 3 characters in 1 line, a str of 3 characters in 1 line"),
        ((7, None, True), [7, None, True], "a list of 3 items: a value of the type int, a value of the type NoneType"),
        ((("secret",) * 25), ["secret"] * 25, "a list of 25 items: " + "a str of 6 characters in 1 line, " * 20 + "5 more"),
    ],
)
def test_the_memory_results_are_a_variable_of_which_the_prompt_states_the_size(
    memory_results: tuple[Json, ...], value: Json, description: str
) -> None:
    steps, effect = start(*memory_results)
    assert f"`context` is {description}" in system_prompt(effect)
    assert run(steps, block("1")).cell.variables == {"context": value}


def test_no_message_contains_the_memory_results() -> None:
    steps, effect = start({"needle-key": "needle"}, "needle " * 100)
    steps.send(AssistantReply(block("print(len(context))")))
    later = steps.send(CellResult("2\n"))
    assert isinstance(later, Infer)
    assert "needle" not in "".join(message.content for message in (*effect.messages, *later.messages))


def test_the_agents_system_prompt_replaces_that_of_the_kind() -> None:
    _, effect = start("abc", agent=RLMAgent(system_prompt="Write code."))
    assert system_prompt(effect).startswith("Write code.\n\n`context` is a str of 3 characters in 1 line.")
    assert "llm_query(" not in system_prompt(effect)


def test_a_blank_system_prompt_replaces_nothing() -> None:
    assert system_prompt(start(agent=RLMAgent(system_prompt=" \n"))[1]) == system_prompt(start()[1])


def test_the_prompt_lists_the_tools_as_functions() -> None:
    steps, effect = start(specs=(CALCULATOR,))
    assert "`calculator(…)`" in system_prompt(effect)
    assert system_prompt(effect).endswith(
        "calculator (category: math): Evaluate an expression.\nParameters:\n- expression (string, optional): What to evaluate."
    )
    assert run(steps, block("calculator(expression='1')")).cell.tools
    steps, effect = start()
    assert "ToolError" not in system_prompt(effect)
    assert not run(steps, block("1")).cell.tools


def test_a_block_runs_with_the_parameters_of_the_agent() -> None:
    steps, _ = start("abc")
    assert run(steps, f"I look.\n{block('print(1)')}") == RunCode(
        Cell("print(1)", {"context": "abc"}, QUERIES, tools=False, max_output_chars=10_000), "I look."
    )
    agent = RLMAgent(sub_model="mini", sub_temperature=1, sub_max_tokens=7, max_sub_calls=3, max_output_chars=50)
    steps, effect = start(agent=agent)
    assert "10 replies and 3 queries" in system_prompt(effect)
    assert run(steps, block("1")).cell == Cell("1", {"context": []}, Queries("mini", 1, 7, 3), max_output_chars=50)


@pytest.mark.parametrize("language", ["python", "Python", "py", "repl"])
def test_python_and_repl_blocks_run(language: str) -> None:
    steps, _ = start()
    assert run(steps, block("x = 1", language)).cell.code == "x = 1"


@pytest.mark.parametrize("text", ["It is 4.", "", 'FINAL("x")', block("x = 1", "js"), block("x = 1", ""), "`FINAL(1)`"])
def test_a_reply_without_a_block_of_python_is_the_answer(text: str) -> None:
    steps, _ = start()
    assert answer(steps, AssistantReply(text)) == Answer(text)


def test_native_calls_of_a_model_are_ignored() -> None:
    steps, _ = start(specs=(CALCULATOR,))
    assert answer(steps, AssistantReply("So.", (ToolCall("c1", "calculator", "{}"),))) == Answer("So.")


def test_the_model_reads_what_each_cell_printed_as_data() -> None:
    steps, first = start("abc")
    reply(steps, f"I look.\n{block('print(1)')}\nand so on")
    effect = steps.send(CellResult("1\n", truncated=5))
    assert isinstance(effect, Infer)
    assert effect.messages[: len(first.messages)] == first.messages
    wrote, printed = effect.messages[len(first.messages) :]
    assert wrote == Message(Role.ASSISTANT, f"I look.\n\n{block('print(1)')}")
    assert printed.data
    assert printed.content.startswith("Output: 1\n[5 more characters")


def test_an_error_of_the_code_is_data_and_the_work_goes_on() -> None:
    steps, _ = start()
    reply(steps, block("1/0"))
    effect = steps.send(CellResult("", "ZeroDivisionError: division by zero"))
    assert isinstance(effect, Infer)
    assert effect.messages[-1] == user("Output: Error: ZeroDivisionError: division by zero", data=True)
    assert run(steps, block("1")).cell.code == "1"


def test_final_is_the_answer() -> None:
    steps, _ = start()
    reply(steps, block("FINAL(4)"))
    assert answer(steps, CellResult("so far", final="4")) == Answer("4")


def test_all_blocks_of_a_reply_run_in_order_until_one_gives_the_answer() -> None:
    steps, _ = start()
    text = "\n".join(("First.", block("a"), "Second.", block("b", "repl"), block("c")))
    assert run(steps, text) == RunCode(Cell("a", {"context": []}, QUERIES), "First.")
    assert steps.send(CellResult("A", "Broken")) == RunCode(Cell("b", {"context": []}, QUERIES), "")
    assert steps.send(CellResult("B")) == RunCode(Cell("c", {"context": []}, QUERIES), "")
    effect = steps.send(CellResult("C"))
    assert isinstance(effect, Infer)
    assert [message.content for message in effect.messages[2:] if message.data] == [
        "Output: A\nError: Broken",
        "Output: B",
        "Output: C",
    ]
    reply(steps, text)
    assert answer(steps, CellResult("", final="done")) == Answer("done")


def test_at_most_32_blocks_of_a_reply_run() -> None:
    steps, _ = start()
    effect = reply(steps, "\n".join(block(str(number)) for number in range(40)))
    ran = []
    while isinstance(effect, RunCode):
        ran.append(effect.cell.code)
        effect = steps.send(CellResult(""))
    assert ran == [str(number) for number in range(32)]


def test_at_the_limit_the_answer_is_the_output_of_the_last_cell() -> None:
    steps, _ = start(agent=RLMAgent(max_turns=1))
    reply(steps, f"{block('a')}\n{block('b')}")
    steps.send(CellResult("first"))
    assert isinstance(steps.send(CellResult("last", "Broken")), Infer)
    with pytest.raises(StopIteration) as end:
        steps.throw(MaxTurns())
    assert end.value.value == Answer("last")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_code_in_a_reply_that_was_cut_off_does_not_run(reason: FinishReason) -> None:
    steps, _ = start()
    cut = AssistantReply(f"I look.\n{block('a = 1')}\n```python\nprint(a", finish_reason=reason)
    assert answer(steps, cut) == Answer("I look.")
    steps, _ = start()
    assert answer(steps, AssistantReply("It is", finish_reason=reason)) == Answer("It is")


def test_a_block_without_an_end_runs() -> None:
    steps, _ = start()
    assert run(steps, "```python\nFINAL(1)").cell.code == "FINAL(1)"


def test_earlier_turns_are_text_and_their_variables_are_gone() -> None:
    call = ToolCall("c1", "code_interpreter", dump({"code": "print(1)"}))
    result = json.dumps({"output": "1\n", "error": None, "truncated": 0})
    conversation = (
        user("Hello"),
        Message(Role.ASSISTANT, "I look.", (call,)),
        Message(Role.TOOL, result, tool_call_id="c1"),
        Message(Role.ASSISTANT, "It is 1."),
    )
    _, effect = start("abc", conversation=conversation)
    system, hello, cell, output, said, question = effect.messages
    assert "variables of earlier turns are gone" in system.content
    assert (hello, said, question) == (user("Hello"), Message(Role.ASSISTANT, "It is 1."), user("How many?"))
    assert cell == Message(Role.ASSISTANT, f"I look.\n\n{block('print(1)')}")
    assert output == user("Output: 1", data=True)
    assert "earlier turns" not in system_prompt(start("abc")[1])
