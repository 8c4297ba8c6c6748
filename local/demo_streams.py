"""The streams of the demo: one is cut, resumed and replayed, another is stopped."""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final
from uuid import uuid4

from local.demo_calls import DemoFailed, StreamedEvent, Walk

_AGENT: Final = "/agents/concise-de"
_CHAT: Final = f"/c1{_AGENT}/chat"
_TOKENS_BEFORE_CUT: Final = 3
_LAST_NUMBER: Final = 30


def show_streams(step: Walk) -> None:
    """Cut, resume, replay and stop streams of chats.

    Raises:
        DemoFailed: an event is missing or comes twice, or the stopped turn is not in the history.
    """
    step.title("12. A stream is cut, and resumed after its last event")
    session = _resume(step)
    step.title("13. A second connection stops a turn, which is recorded as far as it got")
    _stop(step, session)


def _resume(step: Walk) -> str:
    """Return the id of the session."""
    message_id = f"demo-{uuid4()}"
    question = f"Zähle langsam bis {_LAST_NUMBER}."
    cut = _cut(step, message_id, {"session_id": message_id}, question)
    step.note(f"The connection was closed after event {cut[-1].id}. The turn continues without it.")
    rest = _follow(step, message_id, after=cut[-1].id)
    events = [*cut, *rest]
    if [event.id for event in events] != [f"1-{number}" for number in range(1, len(events) + 1)]:
        raise DemoFailed("The events of both connections should be numbered without gaps")
    answer = "".join(event.data["content"] for event in events if event.data["type"] == "token")
    step.note(f"{question}\n  » {answer}")
    if _numbers(answer) != [*range(1, _LAST_NUMBER + 1)]:
        raise DemoFailed(f"Both parts of the stream together should be the numbers from 1 to {_LAST_NUMBER}")
    if _follow(step, message_id) != events:
        raise DemoFailed("The stream should have the same events when it is read again")
    return str(events[0].data["session_id"])


def _stop(step: Walk, session: str) -> None:
    message_id = f"demo-{uuid4()}"
    cut = _cut(step, message_id, {"session_id": session}, "Zähle langsam bis 200.")
    active = step.call("GET", f"/a1{_AGENT}/sessions/{session}")["active_turn"]
    if active != {"message_id": message_id}:
        raise DemoFailed("The session should name the stream that is running in it")
    step.call("DELETE", f"{_CHAT}/{message_id}")
    done = _follow(step, message_id, after=cut[-1].id)[-1].data
    if done["finish_reason"] != "cancelled":
        raise DemoFailed(f"The turn should end with cancelled; it ended with {done['finish_reason']}")
    last = step.call("GET", f"/a1{_AGENT}/sessions/{session}/messages")["messages"][-1]
    numbers = _numbers(last["content"])
    if last["seq"] != done["message"]["seq"] or not 0 < len(numbers) < 200 or numbers != [*range(1, len(numbers) + 1)]:
        raise DemoFailed("The history should have the numbers that were written before the stop")


def _cut(step: Walk, message_id: str, session: Mapping[str, Any], text: str) -> Sequence[StreamedEvent]:
    """Send a message, and close the connection after three tokens. Return the events that have arrived."""
    request = {"message_id": message_id, **session, "messages": [{"role": "user", "content": text}]}
    events: list[StreamedEvent] = []
    with closing(step.stream("POST", _CHAT, request)) as stream:
        for event in stream:
            events.append(event)
            if sum(one.data["type"] == "token" for one in events) == _TOKENS_BEFORE_CUT:
                return events
    raise DemoFailed("The stream should not be over before it is cut")


def _follow(step: Walk, message_id: str, *, after: str | None = None) -> Sequence[StreamedEvent]:
    """Read a stream from its start, or after an event, to its end."""
    events = [*step.stream("GET", f"{_CHAT}/{message_id}", after=after)]
    if not events or events[-1].data["type"] != "done":
        raise DemoFailed("The stream should end with done")
    return events


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
