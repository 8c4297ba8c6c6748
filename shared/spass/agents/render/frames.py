"""Render the run of an agent as frames. Each event is rendered once; a response, a follower and a replay send the same text."""

from collections.abc import Mapping, Sequence
from typing import Final

from spass.agents.render.events import EventWriter, StreamEvent, render_failure, split_token
from spass.core.events import Event, Token
from spass.core.ids import RequestId, SessionId
from spass.core.json import dump_line
from spass.core.messages import Json
from spass.core.outcome import TurnOutcome
from spass.journal.frames import Frame

_BEFORE_TEXT: Final = '{"type":"token","content":"'
"""The JSON before the text of a token."""


class FrameWriter:
    """Render the events of one run as frames."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._step = 0
        self._suffix = ""

    def write(self, event: Event) -> Sequence[Frame]:
        """Return the frames of one event of the run. Most events of a run have one, some have none."""
        if not isinstance(event, Token):
            return [_frame(rendered) for rendered in self._events.write(event)]
        if event.step != self._step:
            self._step, self._suffix = event.step, _token_suffix(event.step)
        return [_token(piece, self._suffix) for piece in split_token(event.text)]

    def move(self, successor: SessionId) -> Frame:
        """Return the frame that names the session in which the turn goes on after a compaction."""
        return _frame(self._events.move(successor))

    def end(self, outcome: TurnOutcome) -> Sequence[Frame]:
        """Return the end of a run that succeeded: ``complete``, ``usage`` and ``done``."""
        return [_frame(event) for event in self._events.write(outcome)]


def failure_frames(error: Mapping[str, Json], request_id: RequestId) -> Sequence[Frame]:
    """Return the end of a run that failed: two errors. ``error`` is that of the envelope of all errors."""
    return [_frame(event) for event in render_failure(error, request_id)]


def _frame(event: StreamEvent) -> Frame:
    return Frame(dump_line(event))


def _token(text: str, suffix: str) -> Frame:
    return Frame(dump_line(text)[1:-1], _BEFORE_TEXT, suffix)


def _token_suffix(step: int) -> str:
    return f'","step":{step}}}'
