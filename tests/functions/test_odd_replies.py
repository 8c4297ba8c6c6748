"""Replies of models that write code in odd forms: what runs, what is the answer, and what a stream shows."""

from typing import Any, Final, Literal

import pytest

from spass.testing.model import Answer, calls, in_turn
from tests.functions.gateway import Gateway
from tests.stream_grammar import check_collected, of_type, read_events

Kind = Literal["rlm", "native_openhands"]

_TEXT: Final = "Both.\n```python\nprint('hidden')\n```\n"
BESIDE_A_CALL: Final[Answer] = calls(("calculator", {"expression": "6*7"}), text=_TEXT)
CELL: Final = "code_interpreter"
REPLIES: Final[dict[str, tuple[Answer, dict[Kind, list[str] | str]]]] = {
    "a block without an end": ("So.\n```python\nprint('hidden')", {"rlm": [CELL], "native_openhands": [CELL]}),
    "a fence without anything": ("So.\n```python", {"rlm": [CELL], "native_openhands": [CELL]}),
    "five blocks": (
        "\n".join(f"Part {number}.\n```python\nprint('hidden', {number})\n```" for number in range(5)),
        {"rlm": [CELL] * 5, "native_openhands": [CELL] * 5},
    ),
    "another language": (
        "```js\nlet shown = 1\n```",
        {"rlm": "```js\nlet shown = 1\n```", "native_openhands": "```js\nlet shown = 1\n```"},
    ),
    "a block of the REPL": (
        "```repl\nprint('hidden')\n```",
        {"rlm": [CELL], "native_openhands": "```repl\nprint('hidden')\n```"},
    ),
    "code beside a call": (BESIDE_A_CALL, {"rlm": [CELL], "native_openhands": ["calculator"]}),
    "an end without a block": ('FINAL("x")', {"rlm": 'FINAL("x")', "native_openhands": 'FINAL("x")'}),
    "nothing": ("", {"rlm": "", "native_openhands": ""}),
}


@pytest.mark.parametrize("form", REPLIES)
@pytest.mark.parametrize("kind", ["rlm", "native_openhands"])
def test_an_odd_reply_is_code_or_the_answer_and_no_token_has_code(gateway: Gateway, kind: Kind, form: str) -> None:
    reply, outcomes = REPLIES[form]
    body: dict[str, Any] = {"input": "?", "agent": kind, "tools": ["calculator"]}
    gateway.model.script = in_turn([reply, "Done."])
    blocking = gateway.send("POST", "/v1/ask", body=body)
    gateway.model.script = in_turn([reply, "Done."])
    events = read_events(gateway.send("POST", "/v1/ask", body=body | {"stream": True}))
    assert blocking.status == 200
    check_collected(events, blocking.json)
    called, outcome = [result["tool_name"] for result in blocking.json["tool_results"]], outcomes[kind]
    shown = "".join(token["content"] for token in of_type(events, "token"))
    if isinstance(outcome, str):
        assert (blocking.json["content"], blocking.json["turns"], called) == (outcome, 1, [])
        assert shown == outcome
    else:
        assert (blocking.json["content"], blocking.json["turns"], called) == ("Done.", 2, outcome)
        assert "hidden" not in shown
        assert "print(" not in shown
