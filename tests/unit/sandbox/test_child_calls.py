"""The functions that a cell finds in its namespace: calls of models and tools, and the end of the turn."""

from collections.abc import Sequence
from textwrap import indent

import pytest

from spass.core.messages import Json
from tests.child_harness import LIMITS, CellOf, Reply, Report, Request, Turn

CAUGHT = """
try:
    {call}
except LLMError as error:
    print(error.code, "|", error)
"""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("llm_query(5)", "A prompt is a string, not int."),
        ("llm_query(None)", "A prompt is a string, not NoneType."),
        ("llm_query('')", "The prompt is empty."),
        ("llm_query(' \\n')", "The prompt is empty."),
        ("llm_query('x' * 5_000_000)", "The call has 5000015 characters; at most 4194304 are possible."),
        ("llm_batch('abc')", "llm_batch takes a list of prompts, not str."),
        ("llm_batch(7)", "llm_batch takes a list of prompts, not int."),
        ("llm_batch(['a'] * 65)", "llm_batch takes at most 64 prompts, not 65. Call it several times."),
        ("llm_batch(['a', 7])", "A prompt is a string, not int."),
        ("llm_batch(['a', ''])", "The prompt is empty."),
        ("llm_query('\U0001f600' * 3_000_000)", "The call has 12000015 bytes; at most 8387584 are possible."),
        ("llm_batch(['x' * 10**6] * 5)", "The call has 5000075 characters; at most 4194304 are possible."),
    ],
)
def test_a_wrong_prompt_is_an_error_before_any_call(call: str, message: str) -> None:
    turn = Turn([CellOf(CAUGHT.format(call=call))])
    assert turn.run_live() == [Report(f"invalid_request | invalid_request: {message}\n")]
    assert turn.requests == []


def test_an_empty_batch_makes_no_call() -> None:
    turn = Turn([CellOf("llm_batch([])")])
    assert turn.run_live() == [Report("[]\n")]
    assert turn.requests == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("search('x')", "search takes keyword arguments only: search(argument=value)."),
        ("search(query={1})", "The arguments of search cannot be sent: a value of the type set is not JSON."),
        (
            "search(query=float('nan'))",
            "The arguments of search cannot be sent: Out of range float values are not JSON compliant",
        ),
        ("x = []; x.append(x); search(query=x)", "The arguments of search cannot be sent: Circular reference detected."),
        ("search(query=10**70)", "The arguments of search cannot be sent: a number has too many digits."),
        (
            "search(query=[0] * 10_001)",
            "The arguments of search cannot be sent: an object may have 1000 keys and a list 10000 items.",
        ),
        (
            "search(query=[[0] * 9_000] * 6)",
            "The arguments of search cannot be sent: they have 54007 values; at most 50000 are possible.",
        ),
        (
            "x = 1\nfor _ in range(64): x = [x]\nsearch(query=x)",
            "The arguments of search cannot be sent: they are nested deeper than 64 levels.",
        ),
    ],
)
def test_wrong_arguments_of_a_tool_are_an_error_before_any_call(call: str, message: str) -> None:
    lines = "\n".join(f"    {line}" for line in call.splitlines())
    code = f"def f():\n{lines}\ntry:\n    f()\nexcept ToolError as error:\n    print(error.code, error)"
    turn = Turn([CellOf(code, tools=["search"])])
    (report,) = turn.run_live()
    assert report.error is None
    assert report.output.startswith(f"invalid_arguments invalid_arguments: {message}")
    assert turn.requests == []


def test_arguments_of_a_tool_arrive_as_json() -> None:
    turn = Turn([CellOf("search(a=(1, 2.5), b={3: None}, c=True, d='\\ud800', e={})", tools=["search"])])
    turn.run_live()
    assert turn.requests == [[{"tool": "search", "arguments": {"a": [1, 2.5], "b": {"3": None}, "c": True, "d": "?", "e": {}}}]]


def test_a_cell_without_queries_or_tools_has_none_of_their_names() -> None:
    code = "[name for name in ('llm_query', 'llm_batch', 'LLMError', 'FINAL', 'search') if name in globals()]"
    assert Turn([CellOf(code, queries=False)]).run_live() == [Report("[]\n")]


def test_a_tool_whose_name_is_not_an_identifier_is_left_out() -> None:
    assert Turn([CellOf("'a-b' in globals()", tools=["a-b"])]).run_live() == [Report("False\n")]


def test_the_wait_after_the_last_one_says_to_use_llm_batch() -> None:
    code = f"for number in range(5):{indent(CAUGHT.format(call='llm_query(str(number))'), '    ')}"
    turn = Turn([CellOf(code), CellOf("llm_batch(['a', 'b'])")], limits={**LIMITS, "waits": 3})
    first, second = turn.run_live()
    error = (
        "too_many_sub_calls | too_many_sub_calls: The code has waited 3 times in this turn, which is the limit. "
        "Use llm_batch: a list of prompts is one wait.\n"
    )
    assert first == Report(2 * error)
    assert second.error is not None
    assert "too_many_sub_calls" in second.error
    assert len(turn.requests) == 3


FINALS: Sequence[tuple[str, str]] = [
    ("'text'", "text"),
    ("''", ""),
    ("{'a': 1, 'b': [None, True, 2.5], 'ü': 'é'}", '{"a": 1, "b": [null, true, 2.5], "ü": "é"}'),
    ("7", "7"),
    ("None", "null"),
    ("(1, 2)", "[1, 2]"),
    ("{1, }", "{1}"),
    ("float('inf')", "inf"),
    ("'\\ud800'", "?"),
]


@pytest.mark.parametrize(("value", "answer"), FINALS)
def test_final_is_a_string_json_or_str(value: str, answer: str) -> None:
    assert Turn([CellOf(f"FINAL({value})")]).run_live() == [Report("", final=answer)]


@pytest.mark.parametrize(
    "code",
    [
        "print('before'); FINAL('first'); FINAL('second')",
        "print('before')\ntry:\n    FINAL('first')\nexcept BaseException:\n    pass\nfinally:\n    FINAL('second')",
        "print('before')\nwhile True:\n    try:\n        FINAL('first')\n    except BaseException:\n        print('again')",
        "import atexit; atexit.register(print, 'at exit'); print('before'); FINAL('first')",
    ],
)
def test_the_first_final_ends_the_turn_at_once(code: str) -> None:
    assert Turn([CellOf(code), CellOf("print('next')")]).run_live() == [Report("before\n", final="first")]


def test_an_answer_that_is_too_long_is_an_error_that_code_can_repair() -> None:
    code = "try:\n    FINAL('x' * 1_000_001)\nexcept ValueError as error:\n    print(error)\nFINAL('short')"
    output = "the answer has 1000001 characters; at most 1000000 are possible\n"
    assert Turn([CellOf(code)]).run_live() == [Report(output, final="short")]


def test_final_works_after_a_cell_has_used_its_name() -> None:
    assert Turn([CellOf("FINAL = 'x'"), CellOf("FINAL('y')")]).run_live() == [Report(""), Report("", final="y")]


def test_a_name_that_a_cell_has_assigned_keeps_its_value() -> None:
    cells = [CellOf("search = search(q=1)", tools=["search"]), CellOf("search", tools=["search"])]
    assert Turn(cells).run_live() == [Report(""), Report("'answer 0'\n")]


@pytest.mark.parametrize("value", ["text", ["a", {"b": None}], {"k": [1, 2.5, True]}])
def test_variables_have_the_values_of_their_json(value: Json) -> None:
    assert Turn([CellOf("context")], variables={"context": value}).run_live() == [Report(f"{value!r}\n")]


def test_the_error_of_a_call_shows_its_code() -> None:
    def refuse(requests: Sequence[Request]) -> Sequence[Reply]:
        return [{"error": {"code": "budget_exceeded", "message": "The budget is used up."}} for _ in requests]

    (report,) = Turn([CellOf("llm_query('x')")], refuse).run_live()
    assert report.error is not None
    assert report.error.endswith("LLMError: budget_exceeded: The budget is used up.")


LATE = """
errors = []
class Late:
    def __del__(self):
        try:
            {call}
        except Exception as error:
            errors.append(str(error))
FINAL = Late()
"""


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("llm_query('late')", "invalid_request: A call is possible only while a cell runs."),
        ("search(q=1)", "invalid_request: A call is possible only while a cell runs."),
        ("FINAL_OF_BEFORE('late')", "FINAL works only while a cell runs"),
    ],
)
def test_a_call_between_two_cells_is_refused(call: str, error: str) -> None:
    first = f"FINAL_OF_BEFORE = FINAL{LATE.format(call=call)}"
    turn = Turn([CellOf(first, tools=["search"]), CellOf("errors")])
    assert turn.run_live() == [Report(""), Report(f"{[error]}\n")]
    assert turn.requests == []


def test_what_a_failed_cell_leaves_behind_is_released_within_the_cell() -> None:
    code = "class Late:\n    def __del__(self):\n        print(llm_query('late'))\ndef f():\n    late = Late()\n    1 / 0\nf()"
    turn = Turn([CellOf(code), CellOf("print('next')")])
    assert [report.output for report in turn.run_live()] == ["answer 0\n", "next\n"]
