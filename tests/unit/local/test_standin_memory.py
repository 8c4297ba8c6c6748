"""The stand-in stores what an operator is told to remember, and reads the state and the notes that earlier runs left."""

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
        ("Please note under the key gate: it opens at nine.", {"content": "It opens at nine.", "key": "gate"}),
        (
            "Merke dir unter dem Schlüssel bericht, dass er am Freitag fällig ist.",
            {"content": "Er am Freitag fällig ist.", "key": "bericht"},
        ),
        ("Store the following in your memory: two\nlines", {"content": "Two\nlines"}),
    ],
)
def test_an_order_to_remember_is_stored(order: str, note: dict[str, str]) -> None:
    assert calls(("user", order)) == [("memory_store", note)]


@pytest.mark.parametrize("question", ["Do you remember that pump?", "What did you note about the gate?"])
def test_a_question_about_what_was_remembered_is_searched_and_not_stored(question: str) -> None:
    assert [name for name, _ in calls(("user", question))] == ["memory_search"]


@pytest.mark.parametrize("question", ["What is 1791 * 17?", "What time is it?"])
def test_a_question_for_another_tool_is_not_searched(question: str) -> None:
    assert "memory_search" not in [name for name, _ in calls(("user", question))]


@pytest.mark.parametrize(
    "left",
    [
        "## Previous state\n\nThe pump was repaired on Tuesday.",
        '## Previous state\n\n<data mark="ˆ">TheˆpumpˆwasˆrepairedˆonˆTuesday.</data>',
        '## Previous state\n\n{"input": "What happened?", "answer": "The pump was repaired on Tuesday.", "at": "2026-01-01"}',
        (
            '## Notes of earlier runs\n\n{"key": "gate", "content": "The gate is shut."}\n'
            '{"key": "pump", "content": "The pump was repaired on Tuesday.", "created_at": "2026-01-01"}'
        ),
    ],
)
def test_state_and_notes_answer_a_question_in_their_words(left: str) -> None:
    assert reply(("user", left), ("user", "When was the pump repaired?")).content == "The pump was repaired on Tuesday."


def test_a_stored_note_is_confirmed() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "memory_store", "arguments": '{"content": "It rained."}'}}
    messages = [
        {"role": "user", "content": "Remember that it rained."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"key": "note-1"}'},
    ]
    assert complete({"model": "any", "messages": messages, "tools": TOOLS}).content == "Noted."
