"""The stand-in stores what an operator is told to remember, and searches for it."""

import json
from typing import Any

import pytest

from local.standin.wire import complete

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("memory_store", "memory_search", "calculator", "current_datetime")
]


def reply(*messages: tuple[str, str]) -> Any:
    return complete({"model": "any", "messages": [{"role": role, "content": text} for role, text in messages], "tools": TOOLS})


def calls(*messages: tuple[str, str]) -> list[tuple[str, Any]]:
    found = [call["function"] for call in reply(*messages).tool_calls]
    return [(call["name"], json.loads(call["arguments"])) for call in found]


@pytest.mark.parametrize(
    ("order", "note"),
    [
        ("Remember that the pump was repaired on Tuesday.", {"content": "The pump was repaired on Tuesday."}),
        ("Please remember under the key gate that it opens\nat nine.", {"content": "It opens\nat nine.", "key": "gate"}),
    ],
)
def test_an_order_to_remember_is_stored(order: str, note: dict[str, str]) -> None:
    assert calls(("user", order)) == [("memory_store", note)]


def test_a_question_that_nothing_else_answers_is_searched() -> None:
    question = ("user", "Do you remember when the pump was repaired?")
    assert calls(question) == [("memory_search", {"query": question[1]})]
    assert [name for name, _ in calls(("user", "What is 1791 * 17?"))] == ["calculator"]
    ordered = (("user", "Remember that the pump was repaired on Tuesday."), ("assistant", "Noted."))
    assert reply(*ordered, ("user", "When was the pump repaired?")).content == "The pump was repaired on Tuesday."


def test_a_stored_note_is_confirmed() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "memory_store", "arguments": '{"content": "It rained."}'}}
    messages = [
        {"role": "user", "content": "Remember that it rained."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"key": "note-1"}'},
    ]
    assert complete({"model": "any", "messages": messages, "tools": TOOLS}).content == "Noted."
