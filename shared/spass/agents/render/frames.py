"""Render the run of an agent as frames. Each event is rendered once; a response, a follower and a replay send the same text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from spass.agents.render.events import EventWriter, StreamName, render_failure, split_token
from spass.core.events import Event, Token
from spass.core.ids import RequestId, SessionId
from spass.core.json import dump_line
from spass.core.messages import Json
from spass.core.run_result import AgentRun, RunResult
from spass.journal.frames import Frame, json_frame

_BEFORE_TEXT: Final = '{"type":"token","content":"'
"""The JSON before the text of a token."""


class StreamRenderer(Protocol):
    """Render the run of one stream as frames: its events, and either its end or its failure."""

    def write(self, event: Event) -> Sequence[Frame]:
        """Return the frames of one event of the run, which may be none."""

    def move(self, successor: SessionId) -> Sequence[Frame]:
        """Return the frames that tell that the turn goes on in ``successor`` after a compaction."""

    def end(self, outcome: RunResult) -> Sequence[Frame]:
        """Return the end of a run that succeeded. Its readers get it when the turn is recorded."""

    def fail(self, error: Mapping[str, Json]) -> Sequence[Frame]:
        """Return the end of a run that failed. ``error`` is that of the envelope of all errors."""


class RunFormat(Protocol):
    """A format of the frames of runs."""

    def renderer(
        self, request_id: RequestId, session: SessionId | None, stream: StreamName | None, run: AgentRun
    ) -> StreamRenderer:
        """Return the renderer of one attempt of a run. ``session`` is that in which the turn begins. ``stream`` is None if nobody
        can follow the run."""


class FrameWriter:
    """Render the events of one run as frames. See ``StreamRenderer``."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._step = 0
        self._suffix = ""

    def write(self, event: Event) -> Sequence[Frame]:
        if not isinstance(event, Token):
            return [json_frame(rendered) for rendered in self._events.write(event)]
        if event.step != self._step:
            self._step, self._suffix = event.step, _token_suffix(event.step)
        return [_token(piece, self._suffix) for piece in split_token(event.text)]

    def move(self, successor: SessionId) -> Sequence[Frame]:
        return [json_frame(self._events.move(successor))]

    def end(self, outcome: RunResult) -> Sequence[Frame]:
        return [json_frame(event) for event in self._events.write(outcome)]

    def fail(self, error: Mapping[str, Json]) -> Sequence[Frame]:
        return [json_frame(event) for event in self._events.fail(error)]


@dataclass(frozen=True, slots=True)
class EventFormat:
    """The format of chats, sessions and questions. With ``shows_kind``, the last event has the kind of the agent, as the answer
    to a question has it."""

    shows_kind: bool = False

    def renderer(self, request_id: RequestId, session: SessionId | None, stream: StreamName | None, run: AgentRun) -> FrameWriter:
        """See ``RunFormat.renderer``."""
        return FrameWriter(EventWriter(request_id, run.agent, session, stream=stream, shows_kind=self.shows_kind))

    def replay(self, request_id: RequestId, outcome: RunResult) -> Sequence[Frame]:
        """Return the stream of a run that an earlier request recorded."""
        return [*map(json_frame, EventWriter(request_id, outcome.run.agent, shows_kind=self.shows_kind).replay(outcome))]


EVENTS: Final = EventFormat()


def failure_frames(error: Mapping[str, Json], request_id: RequestId) -> Sequence[Frame]:
    """Return the end of a run that failed: two errors. ``error`` is that of the envelope of all errors."""
    return [json_frame(event) for event in render_failure(error, request_id)]


def _token(text: str, suffix: str) -> Frame:
    return Frame(dump_line(text)[1:-1], _BEFORE_TEXT, suffix)


def _token_suffix(step: int) -> str:
    return f'","step":{step}}}'
