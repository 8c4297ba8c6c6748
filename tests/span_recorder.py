"""A receiver of OTLP/HTTP that accepts what OpenTelemetry's own messages can hold, and nothing else."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve

_IDS: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
OK: Final = json_answer({})


@dataclass(frozen=True)
class RecordedSpan:
    """A span as a backend stores it. ``parent_id`` is empty for a root."""

    trace_id: str
    id: str
    parent_id: str
    name: str
    kind: str
    attributes: Mapping[str, Any]
    is_error: bool
    links: Sequence[tuple[str, str]]
    seconds: float


@dataclass
class SpanRecorder:
    """The requests that arrived, and ``spans``, which they held. ``answer`` is the answer to each."""

    requests: list[HttpRequest] = field(default_factory=list)
    bodies: list[ExportTraceServiceRequest] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    answer: HttpAnswer | None = OK
    url: str = ""

    def receive(self, request: HttpRequest) -> HttpAnswer | None:
        self.requests.append(request)
        try:
            assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
            self.bodies.append(parse(request.body))
        except Exception as error:  # noqa: BLE001 (the test raises it)
            self.errors.append(error)
            return json_answer({}, 400)
        return self.answer

    @property
    def spans(self) -> list[RecordedSpan]:
        """Return all spans in the order of their arrival. Raise the error of a body that was refused."""
        for error in self.errors:
            raise error
        groups = [group for body in self.bodies for resource in body.resource_spans for group in resource.scope_spans]
        return [_recorded(span) for group in groups for span in group.spans]


@contextmanager
def span_recorder() -> Iterator[SpanRecorder]:
    """Record on a free loopback port until the block ends."""
    recorder = SpanRecorder()
    with serve(recorder.receive) as url:
        recorder.url = f"{url}/v1/traces"
        yield recorder


def parse(body: bytes) -> ExportTraceServiceRequest:
    """Parse a body strictly. Ids are hexadecimal in OTLP, and base64 in protobuf's JSON."""
    message = json.loads(body)
    for span in _all_spans(message):
        for part in (span, *span.get("links", ())):
            for name, size in _IDS.items():
                if name in part:
                    raw = bytes.fromhex(part[name])
                    assert len(raw) == size, part
                    assert any(raw), part
                    part[name] = base64.b64encode(raw).decode()
    found = ExportTraceServiceRequest()
    json_format.ParseDict(message, found)
    return found


def _all_spans(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _recorded(span: ProtoSpan) -> RecordedSpan:
    values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    assert len(values) == len(span.attributes), "an attribute is there twice"
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    return RecordedSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        values,
        span.status.code == 2,
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    )
