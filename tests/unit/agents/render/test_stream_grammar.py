"""The checker of streams accepts what the renderer writes, however it was cut, and refuses streams that break a rule."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.render.events import EventWriter, StreamName
from spass.agents.render.frames import FrameWriter, failure_frames
from spass.core.effects import ToolOutcome
from spass.core.events import Event as CoreEvent
from spass.core.events import Nested, Token, ToolCallFinished, ToolCallStarted, ToolProgress, TurnStarted
from spass.core.ids import RequestId, SessionId
from spass.core.messages import Message, Role, ToolCall
from spass.journal.frames import EventId, Frame
from tests.stream_grammar import Event, check_events, check_ids, parse_events, receive
from tests.unit.agents.render.test_events import CALL, OUTCOME

REQUEST = RequestId("req_1")
INNER, INNERMOST = (replace(CALL, id=f"call_{number}") for number in (2, 3))


def finished(call: ToolCall) -> ToolCallFinished:
    message = Message(Role.TOOL, "{}", tool_call_id=call.id)
    return ToolCallFinished(ToolOutcome(call, {"expression": "1+1"}, {"result": 2}, message, 1))


def frames() -> list[Frame]:
    writer = FrameWriter(EventWriter(REQUEST, "librarian", SessionId("ses_1"), stream=StreamName("m-1", 3)))
    run: list[CoreEvent] = [
        TurnStarted(),
        Token("I ask", 1),
        ToolCallStarted(CALL),
        ToolProgress(CALL.id, "half"),
        Nested("a", CALL.id, ToolCallStarted(INNER)),
        Nested("b", INNER.id, ToolCallStarted(INNERMOST)),
        Nested("b", INNER.id, ToolProgress(INNERMOST.id, "half")),
        Nested("b", INNER.id, finished(INNERMOST)),
        Nested("a", CALL.id, finished(INNER)),
        finished(CALL),
        Token("Zwölf…", 2),
    ]
    written = [frame for event in run for frame in writer.write(event)]
    return [*written[:1], *writer.move(SessionId("ses_2")), *written[1:], *writer.end(OUTCOME)]


def body(events: list[Event] | None = None, *, first: int = 1) -> str:
    """Return what one connection sends: the events from number ``first`` on."""
    lines = [json.dumps(event, ensure_ascii=False) for event in events] if events is not None else [f.data for f in frames()]
    sent = [f"id: 3-{number}\ndata: {line}\n\n" for number, line in enumerate(lines, 1)]
    return "retry: 1000\n\n" + ": keep-alive\n\n".join(sent[first - 1 :])


EVENTS = parse_events(body())


def test_a_stream_of_the_renderer_is_accepted() -> None:
    assert [event["type"] for event in EVENTS[-2:]] == ["usage", "done"]
    received = receive(body())
    assert (received.retry, received.comments) == (1000, len(EVENTS) - 1)
    assert received.ids[0] == EventId(3, 1)


@given(st.lists(st.integers(0, 2000), max_size=4))
def test_a_stream_that_was_cut_at_any_byte_and_resumed_is_the_same(cuts: list[int]) -> None:
    connections, place = [], 1
    for cut in cuts:
        connections.append(body(first=place).encode()[:cut])
        place += len(receive(connections[-1]).sent)
        if place > len(EVENTS):
            break
    if place <= len(EVENTS):
        connections.append(body(first=place).encode())
    assert parse_events(*connections) == EVENTS


def test_only_the_last_two_events_of_a_stream_may_have_no_id() -> None:
    lost = "".join(f"data: {frame.data}\n\n" for frame in failure_frames({"code": "turn_lost", "message": "Lost."}, REQUEST))
    received = receive(body(EVENTS[:4]) + lost)
    check_ids(received.sent)
    check_events(received.events)
    with pytest.raises(AssertionError):
        check_ids(receive(body(EVENTS[:4]) + lost.partition("\n\n")[2]).sent)


def test_a_stream_that_goes_on_is_accepted_only_as_such() -> None:
    check_events(EVENTS[:4], whole=False)
    with pytest.raises(AssertionError):
        check_events(EVENTS[:4])


def without(kind: str) -> list[Event]:
    return [event for event in EVENTS if event["type"] != kind]


def changed(place: int, **fields: Any) -> list[Event]:
    return [*EVENTS[:place], EVENTS[place] | fields, *EVENTS[place + 1 :]]


def moved(place: int, to: int) -> list[Event]:
    """Return the events with the one at ``place`` before the one at ``to``."""
    others = [event if at != place else None for at, event in enumerate(EVENTS)]
    return [event for event in [*others[:to], EVENTS[place], *others[to:]] if event is not None]


def place_of(matches: Callable[[Event], bool]) -> int:
    return next(place for place, event in enumerate(EVENTS) if matches(event))


START = place_of(lambda event: "tool_call" in event)
END = place_of(lambda event: event.get("id") == CALL.id)
INNER_START = place_of(lambda event: event.get("tool_call", {}).get("id") == INNER.id)
INNER_END = place_of(lambda event: event.get("id") == INNER.id)
TOKEN = place_of(lambda event: event["type"] == "token")


@pytest.mark.parametrize(
    "events",
    [
        EVENTS[1:][1:],
        EVENTS[:-1],
        [*EVENTS, EVENTS[-1]],
        [*EVENTS, *EVENTS],
        without("usage"),
        without("tool_call"),
        [*EVENTS[:START], *EVENTS[START + 1 :]],
        [*EVENTS[:START], EVENTS[START], *EVENTS[START:]],
        [*EVENTS[:END], EVENTS[END], *EVENTS[END:]],
        [*EVENTS[: START + 1], EVENTS[END], EVENTS[START + 1], *EVENTS[END + 1 :]],
        moved(INNER_START, START),
        moved(END, INNER_END),
        moved(INNER_END, END + 1),
        changed(INNER_END, parent_id="call_9"),
        changed(INNER_END, agent=None),
        changed(INNER_END, parent_id=None, agent=None),
        changed(INNER_START, tool_call=EVENTS[INNER_START]["tool_call"] | {"parent_id": "call_9"}),
        changed(TOKEN, step=9),
        changed(TOKEN, step=0),
        changed(TOKEN, content="x" * 32_769),
        changed(TOKEN, more=1),
        changed(0, attempt=2),
        changed(0, session_id="ses_2"),
        changed(1, message_id="m-2"),
    ],
)
def test_a_stream_that_breaks_the_grammar_is_refused(events: list[Event]) -> None:
    with pytest.raises(AssertionError):
        parse_events(body(events))


@pytest.mark.parametrize(
    "break_it",
    [
        lambda text: text.replace("id: 3-4\n", ""),
        lambda text: text.replace("id: 3-4\n", "id: 3-5\n"),
        lambda text: text.replace("id: 3-4\n", "id: 4-4\n"),
        lambda text: text.replace("id: 3-1\n", "id: 3-0\n"),
        lambda text: text.replace("retry: 1000\n\n", ""),
        lambda text: text.replace("retry: 1000\n\n", "retry: 3000\n\n"),
        lambda text: text.replace("Zwölf", "Zw\u2028lf"),
        lambda text: text.replace("id: 3-4\n", "id: 3-4\ndata: {}\n"),
        lambda text: text.replace(": keep-alive", "keep-alive"),
        lambda text: text[:-1],
    ],
)
def test_a_stream_with_wrong_lines_is_refused(break_it: Callable[[str], str]) -> None:
    assert break_it(body()) != body()
    with pytest.raises((AssertionError, ValueError)):
        parse_events(break_it(body()))
