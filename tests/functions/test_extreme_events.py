"""The largest events that a provider can cause fit in the journal: the turn is recorded, and a replay equals the stream."""

import pytest

from spass.core.messages import FinishReason, ToolCallDelta
from spass.models.types import MAX_CALL_ID_CHARACTERS, ChatDelta
from spass.testing.model import in_turn
from spass.tools.base import MAX_ARGUMENTS_BYTES
from tests.functions.gateway import Gateway
from tests.stream_grammar import answer_text, of_type, read_events

WIDEST = "\x01"
"""A character that takes six bytes in the JSON of an event."""
LINE_SEPARATOR = "\u2028"
"""A character that takes three bytes in a model's JSON and six in that of an event."""


@pytest.mark.parametrize(
    ("call_id", "name", "arguments"),
    [
        ("i" * 1_000_000, "calculator", '{"expression": "6*7"}'),
        (WIDEST * MAX_CALL_ID_CHARACTERS, "calculator" * 100_000, WIDEST * 300_000),
        (
            WIDEST * MAX_CALL_ID_CHARACTERS,
            "calculator",
            f'{{"expression": "{LINE_SEPARATOR * (MAX_ARGUMENTS_BYTES // 3 - 10)}"}}',
        ),
        ("call\n\ndata: {}\nid: 1-9", "calculator\n\ndata: {}", '{"expression": "6*7"}'),
    ],
    ids=["a long id", "unreadable arguments", "readable arguments", "line breaks"],
)
def test_a_call_of_any_size_is_shown_recorded_and_replayed(gateway: Gateway, call_id: str, name: str, arguments: str) -> None:
    call = ChatDelta(tool_calls=(ToolCallDelta(0, call_id, name, arguments),), finish_reason=FinishReason.TOOL_CALLS)
    gateway.model.script = in_turn([[call], "Noted."])
    body = {"message_id": "m-1", "messages": [{"role": "user", "content": "Hi"}]}
    reply = gateway.send("POST", "/c1/agents/counting/chat", body=body)
    events = read_events(reply)
    assert len(of_type(events, "tool_call")) == 1
    assert (answer_text(events), events[-1]["type"]) == ("Noted.", "done")
    assert gateway.send("GET", "/c1/agents/counting/chat/m-1").text == reply.text
