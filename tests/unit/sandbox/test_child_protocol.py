"""The child runs the cells of a turn and asks its parent for model and tool calls, live and replayed."""

from collections.abc import Sequence

import pytest

from tests.child_harness import CellOf, Reply, Report, Request, Turn, run_cell


def test_a_cell_reports_what_it_prints_and_the_value_of_its_last_expression() -> None:
    assert run_cell("print(6 * 7)\n'x'") == Report("42\n'x'\n")


def test_a_variable_of_the_first_cell_exists_in_the_third() -> None:
    reports = Turn([CellOf("x = len(context)"), CellOf("1 / 0"), CellOf("x")], variables={"context": "abc"}).run_live()
    assert [report.output for report in reports] == ["", "", "3\n"]


CALLS = """
first = llm_query("one")
try:
    llm_query("fail")
except LLMError as error:
    code = error.code
texts = llm_batch(["two", "fail", "three"])
found = search(query="x", limit=3)
try:
    search(query="fail")
except ToolError as error:
    print(first, code, texts, found, error.code)
"""


def answer(requests: Sequence[Request]) -> Sequence[Reply]:
    return [
        {"error": {"code": "upstream_error", "message": "It failed."}}
        if "fail" in str(request)
        else {"value": f"<{request['query']}>" if "query" in request else request["arguments"]}
        for request in requests
    ]


@pytest.mark.parametrize("live", [True, False])
def test_calls_return_their_values_and_raise_their_errors(live: bool) -> None:
    turn = Turn([CellOf(CALLS, tools=["search"]), CellOf("print(first); FINAL({'a': first})")], answer)
    first, second = turn.run_live() if live else turn.run_replayed()
    assert first == Report(
        "<one> upstream_error ['<two>', '[error: upstream_error]', '<three>'] {'query': 'x', 'limit': 3} upstream_error\n"
    )
    assert second == Report("<one>\n", final='{"a": "<one>"}')
    assert turn.requests == [
        [{"query": "one"}],
        [{"query": "fail"}],
        [{"query": "two"}, {"query": "fail"}, {"query": "three"}],
        [{"tool": "search", "arguments": {"query": "x", "limit": 3}}],
        [{"tool": "search", "arguments": {"query": "fail"}}],
    ]
    assert turn.starts == (1 if live else 7)


def test_a_replay_that_asks_for_something_else_diverges() -> None:
    turn = Turn([CellOf("llm_query('a')")])
    turn.run_live()
    turn.cells = [CellOf("llm_query('b')"), CellOf("1")]
    assert turn.replay(2) == ([], None, 0)


def test_a_replay_that_asks_for_less_or_for_more_diverges() -> None:
    turn = Turn([CellOf("llm_query('a'); llm_query('b')")])
    turn.run_live()
    turn.cells = [CellOf("llm_query('a')"), CellOf("1")]
    assert turn.replay(2) == ([], None, 0)
    turn.cells = [CellOf("llm_query('a'); llm_query('b'); llm_query('c')"), CellOf("1")]
    assert turn.replay(2) == ([], None, 0)


def test_a_child_imports_little_before_its_first_cell() -> None:
    code = "import sys; [name for name in ('re', 'json', 'typing', 'collections', 'enum', 'ctypes', 'os') if name in sys.modules]"
    assert run_cell(code) == Report("[]\n")


def test_a_cell_imports_nothing_of_the_gateway() -> None:
    report = run_cell("import spass.core")
    assert report.error is not None
    assert report.error.endswith("ModuleNotFoundError: No module named 'spass.core'")
