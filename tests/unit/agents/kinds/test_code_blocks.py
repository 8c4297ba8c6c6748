"""Blocks of code are found as CommonMark finds them, and a filter of shown text never shows a part of one."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.code_blocks import (
    PYTHON,
    Block,
    CodeReply,
    block_markers,
    cells_as_text,
    describe_result,
    parse_code_reply,
    split_blocks,
    write_cell,
)
from spass.agents.kinds.markers import ShowFilter
from spass.core.effects import CellResult, VisibleAfter, user
from spass.core.messages import Message, Role, ToolCall

SHOW = VisibleAfter((), block_markers(PYTHON))
LINES = (
    *("```python", "```Python", "```py", "~~~python", "````python", "``` python title=x", "  ```python", "\t```python3"),
    *(
        "```",
        "~~~",
        "````",
        "``` ",
        "   ```",
        "       ```",
        "```bash",
        "```json",
        "```pycon",
        "```python```",
        "``````` python",
        "`````````",
    ),
    *("x = 1", "    y = 2", "", " ", "Action: add", "text ```python", "print('```')", "**```python"),
)
CODE = tuple(line for line in LINES if "``````" not in line)  # a fence of more than six signs is not read back
REPLIES = st.lists(st.sampled_from(LINES) | st.text("`~ \tpyx", max_size=8), max_size=12).map("\n".join)


@pytest.mark.parametrize(
    ("reply", "blocks", "said"),
    [
        ("No code.", (), "No code."),
        ("", (), ""),
        ("I add.\n```python\nprint(1)\n```\nDone.", ("print(1)",), "I add."),
        ("```python\na\n```\n```python\nb\n```\n\n~~~python\nc\n~~~", ("a", "b", "c"), ""),
        ("\n".join(f"```python\n{number}\n```" for number in range(5)), ("0", "1", "2", "3", "4"), ""),
        ("I begin.\n```python\nx = 1\nprint(x)", ("x = 1\nprint(x)",), "I begin."),
        ("```python", ("",), ""),
        ("```PYTHON\na\n```", ("a",), ""),
        ("``` python title=x\na\n```", ("a",), ""),
        ("```py\na\n```\n```python3\nb\n```", ("a", "b"), ""),
        ("```python\r\na\r\nb\r\n```\r\nafter", ("a\nb",), ""),
        ("```bash\nls\n```", (), "```bash\nls\n```"),
        ("```\na\n```\n```javascript\nb\n```", (), "```\na\n```\n```javascript\nb\n```"),
        ("```pycon\n>>> a\n```", (), "```pycon\n>>> a\n```"),
        ("```bash\nls\n```\n```python\na\n```", ("a",), "```bash\nls\n```"),
        ("```python\ntext = '''\n~~~\n'''\n```", ("text = '''\n~~~\n'''",), ""),
        ("````python\nprint('''\n```\n''')\n````", ("print('''\n```\n''')",), ""),
        ("```python\ndef f():\n    return '''\n    ```\n    '''\n```", ("def f():\n    return '''\n    ```\n    '''",), ""),
        ("````markdown\n```python\na\n```\n````", (), "````markdown\n```python\na\n```\n````"),
        ("1. So:\n   ```python\n   if a:\n       b\n   ```\n2. Then.", ("if a:\n    b",), "1. So:"),
        ("   ```python\nif a:\n    b\n   ```", ("if a:\n    b",), ""),
        ("so ```python\na\n```", (), "so ```python\na\n```"),
        ("```python print(1)```", (), "```python print(1)```"),
    ],
)
def test_the_blocks_of_a_reply_and_the_words_before_them(reply: str, blocks: tuple[str, ...], said: str) -> None:
    assert parse_code_reply(reply, PYTHON) == CodeReply(blocks, said)


def test_only_blocks_of_the_languages_asked_for_count() -> None:
    reply = "```repl\na\n```\n```python\nb\n```"
    assert parse_code_reply(reply, ("python", "repl")).blocks == ("a", "b")
    assert parse_code_reply(reply, PYTHON) == CodeReply(("b",), "```repl\na\n```")


@given(reply=REPLIES, cuts=st.lists(st.integers(0, 80), max_size=4))
def test_the_shown_text_ends_before_the_first_block(reply: str, cuts: list[int]) -> None:
    show_filter = ShowFilter(SHOW)
    places = [0, *sorted(cuts), len(reply)]
    shown = "".join(show_filter.feed(reply[a:b]) for a, b in pairwise(places)) + show_filter.flush()
    parsed = parse_code_reply(reply, PYTHON)
    assert parsed.text.startswith(shown)
    if "`" not in reply and "~" not in reply:
        assert shown == reply.strip()


@given(reply=REPLIES)
def test_texts_and_blocks_take_turns_and_no_text_has_a_block_of_its_own(reply: str) -> None:
    pieces = split_blocks(reply, PYTHON)
    assert pieces
    assert all(isinstance(piece, Block) == bool(place % 2) for place, piece in enumerate(pieces))
    for piece in pieces:
        if isinstance(piece, str):
            assert split_blocks(piece, PYTHON) == [piece]


@given(said=st.sampled_from(["", "I add.", "So:\nnow."]), code=st.lists(st.sampled_from(CODE), max_size=8).map("\n".join))
def test_a_cell_that_is_written_as_text_is_read_back(said: str, code: str) -> None:
    assert parse_code_reply(write_cell(said, code), PYTHON) == CodeReply((code.removesuffix("\n"),), said)


def test_a_result_tells_what_was_printed_what_is_missing_and_what_failed() -> None:
    assert describe_result(CellResult("4\n")) == user("Output: 4", data=True)
    whole = describe_result(CellResult("4\n", "ZeroDivisionError: division by zero", 12)).content
    assert whole.splitlines() == [
        "Output: 4",
        "[12 more characters of output were not kept. Print less.]",
        "Error: ZeroDivisionError: division by zero",
    ]
    assert describe_result(CellResult("", "NameError: x")).content == "Output: Error: NameError: x"
    assert "printed nothing" in describe_result(CellResult("")).content


def cell(number: int, code: str) -> ToolCall:
    return ToolCall(f"c{number}", "code_interpreter", json.dumps({"code": code}))


def result(number: int, output: str, error: str | None = None, truncated: int = 0) -> Message:
    content = json.dumps({"output": output, "error": error, "truncated": truncated})
    return Message(Role.TOOL, content, tool_call_id=f"c{number}")


def test_a_history_has_cells_and_calls_as_text_each_followed_by_its_result() -> None:
    history = (
        user("What is 2+2?"),
        Message(Role.ASSISTANT, "I add.", (cell(1, "print(2+2)"), ToolCall("c2", "clock", "{}"))),
        result(1, "4\n"),
        Message(Role.TOOL, '"noon"', tool_call_id="c2"),
        Message(Role.ASSISTANT, "", (cell(3, "print(1/0)"),)),
        result(3, "", "ZeroDivisionError", 3),
        Message(Role.ASSISTANT, "It is 4."),
    )
    assert cells_as_text(history) == (
        user("What is 2+2?"),
        Message(Role.ASSISTANT, "I add.\n\n```python\nprint(2+2)\n```"),
        user("Output: 4", data=True),
        Message(Role.ASSISTANT, "Action: clock\nAction Input: {}"),
        user('Observation: "noon"', data=True),
        Message(Role.ASSISTANT, "```python\nprint(1/0)\n```"),
        describe_result(CellResult("", "ZeroDivisionError", 3)),
        Message(Role.ASSISTANT, "It is 4."),
    )


@pytest.mark.parametrize("content", ['{"error": {"code": "cancelled"}}', "no JSON", '{"output": 3}', "[1]"])
def test_a_recorded_result_of_another_form_is_the_output(content: str) -> None:
    history = (Message(Role.ASSISTANT, "", (cell(1, "a"),)), Message(Role.TOOL, content, tool_call_id="c1"))
    assert cells_as_text(history)[1] == user(f"Output: {content}", data=True)


@pytest.mark.parametrize("arguments", ["{", "{}", '{"code": 3}', "[]"])
def test_a_recorded_cell_without_code_is_an_action(arguments: str) -> None:
    call = ToolCall("c1", "code_interpreter", arguments)
    history = (Message(Role.ASSISTANT, "So.", (call,)), Message(Role.TOOL, "x", tool_call_id="c1"))
    assert cells_as_text(history) == (
        Message(Role.ASSISTANT, f"So.\nAction: code_interpreter\nAction Input: {arguments}"),
        user("Observation: x", data=True),
    )


def test_a_result_without_its_call_stays_a_result() -> None:
    assert cells_as_text([Message(Role.TOOL, "x", tool_call_id="c9")]) == (user("Observation: x", data=True),)


def test_a_hundred_thousand_openings_are_one_block_without_an_end() -> None:
    (code,) = parse_code_reply("```python\n" * 100_000, PYTHON).blocks
    assert code.count("```python") == 99_999
