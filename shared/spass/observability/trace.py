"""The spans of one request, or of one message of a queue, as a tree.

A START event begins a span and its END event ends it. A call belongs to the turn that made it, or to the call for which the work
is done. A turn within a call, as that of a delegate, belongs to this call. All else belongs to the root.
"""

import os
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from spass.core.bus_events import AgentTurnEnd, AgentTurnStart, BusEvent, InferenceEnd, InferenceStart, ToolCallEnd, ToolCallStart
from spass.core.ids import RequestId
from spass.observability.conventions import ERROR_TYPE, AttributeValue
from spass.observability.remote import RemoteSpan, parse_traceparent

MAX_SPANS: Final = 512
"""Spans of one trace in one process. Later ones are only counted."""
SLOW_TURN_MS: Final = 30_000
"""A trace with a turn that takes longer is sent, whatever its id."""
_RANDOM_BITS: Final = 56  # of a trace's id, for sampling: https://www.w3.org/TR/trace-context-2/#random-trace-id-flag


@dataclass(slots=True)
class Span:
    """A piece of work. Times are in nanoseconds since the epoch. ``is_failed`` if it ended with an error."""

    name: str
    kind: int
    parent_id: str | None = None
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    began: int = field(default_factory=time.time_ns)
    ended: int = 0
    is_failed: bool = False


class _TurnKey(NamedTuple):
    """A request, or a call of it, makes at most one turn at a time."""

    request_id: RequestId
    parent_request_id: RequestId


Start: TypeAlias = AgentTurnStart | InferenceStart | ToolCallStart
End: TypeAlias = AgentTurnEnd | InferenceEnd | ToolCallEnd


class Trace:
    """The spans of this process for one trace. ``sample`` is the part of all traces that is sent, from 0 to 1.

    ``remote`` is the span of another process to which the root belongs, ``link`` one to which it is only linked. ``is_kept``: the
    trace has an error or a slow turn, so it is sent in any case.
    """

    def __init__(self, root: Span, sample: float) -> None:
        self.root = root
        self.spans = [root]
        self.link: RemoteSpan | None = None
        self.is_kept = False
        self.dropped = 0
        self._sample = sample
        self._id: str | None = None
        self._turns: dict[_TurnKey, Span] = {}
        self._calls: dict[RequestId, Span] = {}

    @property
    def id(self) -> str:
        """Return the trace's id, which is made at the first use unless the trace was joined before."""
        if self._id is None:
            self._id = os.urandom(16).hex()
        return self._id

    @property
    def is_sampled(self) -> bool:
        """Return whether the trace belongs to the part that is sent. Every process decides alike, because the id decides."""
        return int(self.id[-_RANDOM_BITS // 4 :], 16) >= round((1 - self._sample) * (1 << _RANDOM_BITS))

    @property
    def traceparent(self) -> str:
        return f"00-{self.id}-{self.root.id}-{'01' if self.is_sampled else '00'}"

    def join(self, traceparent: str | None, *, is_linked: bool = False) -> None:
        """Continue the trace of ``traceparent``, or link to it. A malformed one has no effect, and a second one links."""
        remote = parse_traceparent(traceparent)
        if remote is None:
            return
        if is_linked or self._id is not None:
            self.link = remote
        else:
            self._id = remote.trace_id
            self.root.parent_id = remote.span_id

    def begin(self, event: Start, span: Span) -> None:
        """Add the span of a START event as a child of the span that its work is done for."""
        if len(self.spans) >= MAX_SPANS:
            self.dropped += 1
            return
        parent = self._calls.get(event.parent_request_id, self.root)
        if isinstance(event, AgentTurnStart):
            self._turns[_key(event)] = span
        else:
            parent = self._turns.get(_key(event), parent)
            self._calls[event.call_id] = span
        span.parent_id = parent.id
        self.spans.append(span)

    def end(self, event: End) -> Span | None:
        """End the span of an END event and return it. Return None if there is none: it was dropped."""
        if isinstance(event, AgentTurnEnd):
            span = self._turns.pop(_key(event), None)
            self.is_kept |= event.duration_ms > SLOW_TURN_MS
        else:
            span = self._calls.pop(event.call_id, None)
        if span is not None:
            span.ended = time.time_ns()
        return span

    def fail(self, span: Span | None, code: str) -> None:
        """Mark ``span`` as failed with the error ``code``. The trace is kept."""
        self.is_kept = True
        if span is not None:
            span.is_failed = True
            span.attributes[ERROR_TYPE] = code

    def close(self) -> None:
        """End the root, and what has not ended: its process goes on without it."""
        now = time.time_ns()
        for span in self.spans:
            span.ended = span.ended or now


def _key(event: BusEvent) -> _TurnKey:
    return _TurnKey(event.request_id, event.parent_request_id)
