"""Telemetry: one line of the log for each END event, and metrics of CloudWatch in the same line.

CloudWatch reads the metrics from the line (the embedded metric format), so no call of an API is needed:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html

CloudWatch bills each metric for each value of its dimension. So a metric has one dimension, whose values the operator's files
bound: the model, the tool or the kind of agent. Tenants, agents and sessions are fields of the lines, and never dimensions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias, TypeVar

from spass.core.bus import AGENT_TURN_END, INFERENCE_END, TOOL_CALL_END, EventBus, EventType
from spass.core.bus_events import BusEvent
from spass.core.messages import Json
from spass.core.time import Timestamp
from spass.metering import audit
from spass.redaction.log import write_line

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
        """Write the lines of ``bus``."""
        bus.subscribe(AGENT_TURN_END, lambda end: self._write_end(AGENT_TURN_END, end, end.error or audit.OK))
        bus.subscribe(TOOL_CALL_END, lambda end: self._write_end(TOOL_CALL_END, end, end.status))
        bus.subscribe(INFERENCE_END, lambda end: self._write_end(INFERENCE_END, end, end.status))

    def _write_end(self, event_type: EventType[E], event: E, status: str) -> None:
        line: dict[str, Json] = {
            "at": event.at,
            "level": "info",
            "event": event_type.name,
            **event_fields(event),
            "failed": int(status not in (audit.OK, audit.CANCELLED)),
        }
        metrics = _OF_TYPE[event_type.name]
        # A dimension must be a text. A tool that does not exist has no name, and needs no metric.
        if self._namespace is not None and isinstance(line[metrics.dimension], str):
            line["_aws"] = _metric_metadata(self._namespace, metrics, event.at)
        self._write(line)


def event_fields(event: BusEvent) -> dict[str, Json]:
    """Return the fields of ``event`` as JSON. Amounts of money are numbers; the audit has the exact ones."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}


def epoch_ms(at: Timestamp) -> int:
    """Return the Unix millisecond of ``at``."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _metric_metadata(namespace: str, metrics: _Metrics, at: Timestamp) -> Json:
    definitions: list[Json] = [{"Name": name, "Unit": unit} for name, unit in metrics.units.items()]
    directive: dict[str, Json] = {"Namespace": namespace, "Dimensions": [[metrics.dimension]], "Metrics": definitions}
    return {"Timestamp": epoch_ms(at), "CloudWatchMetrics": [directive]}
