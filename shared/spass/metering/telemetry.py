"""Telemetry: a line of the log for each END event, with metrics of CloudWatch in it, and a trace for each agent turn.

CloudWatch bills each metric for each value of its dimension. So a metric has one dimension, whose values the operator's files
bound: the model, the tool or the kind of agent. Tenants, agents and sessions are fields of the lines, and never dimensions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias, TypeVar

from spass.core.bus import (
    AGENT_TURN_END,
    AGENT_TURN_START,
    INFERENCE_END,
    INFERENCE_START,
    TOOL_CALL_END,
    TOOL_CALL_START,
    EventBus,
    EventType,
)
from spass.core.bus_events import AgentTurnEnd, AgentTurnStart, BusEvent, InferenceEnd, InferenceStart, ToolCallEnd, ToolCallStart
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.core.time import epoch_ms
from spass.metering import audit
from spass.metering.embedded_metrics import metric_metadata
from spass.redaction.log import write_line

MAX_OPEN_TURNS: Final = 1000
"""Open turns that a process remembers. A further one replaces the oldest, so that turns without an END cannot fill the memory."""

MAX_SPANS: Final = 500
"""Spans of one line. CloudWatch accepts lines of 256 KB; a span has about 250 bytes."""

_Start: TypeAlias = InferenceStart | ToolCallStart
_End: TypeAlias = InferenceEnd | ToolCallEnd
_COMMON_FIELDS: Final = frozenset(BusEvent.__dataclass_fields__)

WriteLine: TypeAlias = Callable[[Mapping[str, Json]], None]
E = TypeVar("E", bound=BusEvent)


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics of one type of events: fields of its line, with their units, and the one field that is their dimension."""

    dimension: str
    units: Mapping[str, str]


_OF_TYPE: Final[Mapping[str, _Metrics]] = {
    AGENT_TURN_END.name: _Metrics("kind", {"duration_ms": "Milliseconds", "failed": "Count"}),
    TOOL_CALL_END.name: _Metrics("tool", {"duration_ms": "Milliseconds", "failed": "Count"}),
    INFERENCE_END.name: _Metrics("model", {"duration_ms": "Milliseconds", "failed": "Count", "cost_usd": "None"}),
}


class Telemetry:
    """Write one line for each END event. With ``namespace``, the lines also contain metrics of that namespace."""

    def __init__(self, namespace: str | None = None, write: WriteLine = write_line) -> None:
        self._namespace = namespace
        self._write = write

    def subscribe(self, bus: EventBus) -> None:
        bus.subscribe(AGENT_TURN_END, lambda end: self._write_end(AGENT_TURN_END, end, end.error or audit.OK))
        bus.subscribe(TOOL_CALL_END, lambda end: self._write_end(TOOL_CALL_END, end, end.status))
        bus.subscribe(INFERENCE_END, lambda end: self._write_end(INFERENCE_END, end, end.status))

    def _write_end(self, event_type: EventType[E], event: E, status: str) -> None:
        line: dict[str, Json] = {
            "at": event.at,
            "level": "info",
            "event": event_type.name,
            **_event_fields(event),
            "failed": int(status not in (audit.OK, audit.CANCELLED)),
        }
        metrics = _OF_TYPE[event_type.name]
        # A dimension must be a text. A tool that does not exist has no name, and needs no metric.
        if self._namespace is not None and isinstance(line[metrics.dimension], str):
            line["_aws"] = metric_metadata(self._namespace, metrics.units, event.at, dimension=metrics.dimension)
        self._write(line)


def _event_fields(event: BusEvent) -> dict[str, Json]:
    """Return the fields of ``event`` as JSON. Amounts of money are numbers; the audit has the exact ones."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}


class _TurnKey(NamedTuple):
    """A request, or a call of it, makes at most one turn at a time."""

    request_id: RequestId
    parent_request_id: RequestId


@dataclass(slots=True)
class _Span:
    start: _Start
    end: _End | None = None


@dataclass(slots=True)
class _Turn:
    start: AgentTurnStart
    spans: dict[RequestId, _Span] = field(default_factory=dict)
    dropped_spans: int = 0


class Traces:
    """Write one line for each turn when it ends.

    A call belongs to the turn that made it, or to the turn of the call that made it. A turn within another turn has its own line,
    whose ``parent_request_id`` is the id of a span of the other one. Calls outside a turn have no trace.
    """

    def __init__(self, write: WriteLine = write_line, *, max_turns: int = MAX_OPEN_TURNS, max_spans: int = MAX_SPANS) -> None:
        self._write = write
        self._max_turns = max_turns
        self._max_spans = max_spans
        self._turns: dict[_TurnKey, _Turn] = {}
        self._turn_of_call: dict[RequestId, _TurnKey] = {}

    def subscribe(self, bus: EventBus) -> None:
        bus.subscribe(AGENT_TURN_START, self._begin_turn)
        bus.subscribe(INFERENCE_START, self._begin_call)
        bus.subscribe(TOOL_CALL_START, self._begin_call)
        bus.subscribe(INFERENCE_END, self._end_call)
        bus.subscribe(TOOL_CALL_END, self._end_call)
        bus.subscribe(AGENT_TURN_END, self._end_turn)

    def _begin_turn(self, start: AgentTurnStart) -> None:
        self._forget(_key(start))
        if len(self._turns) >= self._max_turns:
            self._forget(next(iter(self._turns)))
        self._turns[_key(start)] = _Turn(start)

    def _begin_call(self, start: _Start) -> None:
        key = _key(start)
        if key not in self._turns and start.parent_request_id in self._turn_of_call:
            key = self._turn_of_call[start.parent_request_id]
        if (turn := self._turns.get(key)) is None:
            return
        if len(turn.spans) >= self._max_spans:
            turn.dropped_spans += 1
            return
        turn.spans[start.call_id] = _Span(start)
        self._turn_of_call[start.call_id] = key

    def _end_call(self, end: _End) -> None:
        if (key := self._turn_of_call.get(end.call_id)) is not None:
            self._turns[key].spans[end.call_id].end = end

    def _end_turn(self, end: AgentTurnEnd) -> None:
        if (turn := self._forget(_key(end))) is None:
            return  # the turn began before the subscription, or was dropped
        began_ms = epoch_ms(turn.start.at)
        spans: list[Json] = [_span(span, began_ms) for span in turn.spans.values()]
        line: dict[str, Json] = {
            "at": end.at,
            "level": "info",
            "event": "trace",
            **_event_fields(end),
            "started_at": turn.start.at,
            "input_chars": turn.start.input_chars,
            "spans": spans,
            "dropped_spans": turn.dropped_spans,
        }
        self._write(line)

    def _forget(self, key: _TurnKey) -> _Turn | None:
        turn = self._turns.pop(key, None)
        for call_id in turn.spans if turn else ():
            del self._turn_of_call[call_id]
        return turn


def _key(event: BusEvent) -> _TurnKey:
    return _TurnKey(event.request_id, event.parent_request_id)


def _span(span: _Span, began_ms: int) -> dict[str, Json]:
    """Return a span: its type, its ids, the milliseconds between the start of the turn and its own, and the fields of its END."""
    fields_of_end = _event_fields(span.end or span.start)
    return {
        "type": "inference" if isinstance(span.start, InferenceStart) else "tool_call",
        "parent_id": span.start.parent_request_id,
        "start_ms": epoch_ms(span.start.at) - began_ms,
        **{name: value for name, value in fields_of_end.items() if name not in _COMMON_FIELDS},
    }
