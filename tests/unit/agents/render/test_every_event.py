"""Each format has decided about each event of a turn: whether its clients see it."""

from collections.abc import Callable, Mapping
from typing import Final, get_args

import pytest

from spass.agents.render.chunks import ChunkWriter, chunk_head
from spass.agents.render.events import EventWriter
from spass.agents.render.managed_frames import ManagedFrames
from spass.completions.answer import AnswerBuilder
from spass.core.effects import ToolOutcome
from spass.core.errors import UpstreamError
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Nested,
    Outcome,
    RefusalDelta,
    ResultRecorded,
    Status,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.ids import RequestId
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolCallDelta

REQUEST: Final = RequestId("req_1")
HEAD: Final = chunk_head("chatcmpl-1", 0, "talker")
CALL: Final = ToolCall("call_1", "calculator", '{"expression":"6*7"}')
ASKED: Final = Message(Role.ASSISTANT, "Let me see.", (CALL,))
FINISHED: Final = ToolCallFinished(ToolOutcome(CALL, {"expression": "6*7"}, 42, Message(Role.TOOL, "42", (), CALL.id), 1))

EVENTS, MANAGED, CHUNKS = "events", "managed", "chunks"
SHOWN: Final[Mapping[type[object], tuple[Event, set[str]]]] = {
    TurnStarted: (TurnStarted(), {EVENTS}),
    InferenceStarted: (InferenceStarted(1), set()),
    Token: (Token("It is 42.", 1), {EVENTS, MANAGED, CHUNKS}),
    RefusalDelta: (RefusalDelta("No."), {CHUNKS}),
    ToolCallDelta: (ToolCallDelta(0, "call_1", "weather", "{}"), {CHUNKS}),
    InferenceFinished: (InferenceFinished(ASKED, FinishReason.TOOL_CALLS), {MANAGED}),
    MessageWritten: (MessageWritten(ASKED), {MANAGED}),
    ToolCallStarted: (ToolCallStarted(CALL), {EVENTS}),
    ToolProgress: (ToolProgress("call_1", "half done"), {EVENTS}),
    ToolCallFinished: (FINISHED, {EVENTS, MANAGED}),
    Nested: (Nested("worker", "call_0", FINISHED), {EVENTS}),
    ResultRecorded: (ResultRecorded("call_1", "shorter"), set()),
    Status: (Status("Working."), {EVENTS}),
    TurnFinished: (TurnFinished(FinishReason.STOP), {CHUNKS}),  # the others render the outcome after the commit
    Failed: (Failed(UpstreamError("No.")), set()),  # each format has frames of its own for a failure
}
"""An example of each event, and the formats that show it."""
FORMATS: Final[Mapping[str, Callable[[Event], object]]] = {
    EVENTS: lambda event: [*EventWriter(REQUEST, "librarian").write(event)],
    MANAGED: lambda event: [*ManagedFrames(HEAD, REQUEST).write(event)],
    CHUNKS: lambda event: [*ChunkWriter(HEAD, include_usage=False).write(event)],
}


def test_the_table_has_each_event() -> None:
    assert SHOWN.keys() == {*get_args(Event)}


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_shows_exactly_the_events_that_it_has_decided_to_show(name: str, kind: type[object]) -> None:
    event, formats = SHOWN[kind]
    assert bool(FORMATS[name](event)) is (name in formats)


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_a_collected_answer_takes_every_event(kind: type[object]) -> None:
    event, _ = SHOWN[kind]
    outcome, answer = Outcome(), AnswerBuilder("talker")
    outcome.add(InferenceFinished(ASKED, FinishReason.TOOL_CALLS))
    outcome.add(event)
    answer.add(event)


@pytest.mark.parametrize("within", [ToolCallStarted(CALL), ToolProgress("call_1", "half done"), FINISHED])
def test_each_event_within_a_call_is_shown(within: ToolCallStarted | ToolProgress | ToolCallFinished) -> None:
    assert [*EventWriter(REQUEST, "librarian").write(Nested("worker", "call_0", within))]
