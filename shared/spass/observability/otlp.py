"""Send the spans of a trace as OTLP/HTTP in JSON (https://opentelemetry.io/docs/specs/otlp/), once and without a retry.

AWS freezes a function after its answer, so nothing can be sent later. An answer waits for a short time, and then the spans are
dropped. A failure never reaches the caller. The log has one line a minute about failures.
"""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.observability.conventions import DROPPED_SPANS, SCHEMA_URL, AttributeValue
from spass.observability.headers import ExporterHeaders
from spass.observability.trace import Span, Trace
from spass.redaction.log import write_event

if TYPE_CHECKING:
    import httpx

Sign: TypeAlias = Callable[[str, str, bytes, Mapping[str, str]], Awaitable[Mapping[str, str]]]
"""Return the headers that sign a request: its method, URL, body and headers."""

_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}
_LOG_SECONDS: Final = 60.0
_MAX_ANSWER: Final = 64 * 1024
_STATUS_ERROR: Final = 2
_SAMPLED: Final = 0x01


class Exporter:
    """Send traces to ``endpoint``. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        headers: ExporterHeaders,
        sign: Sign | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._resource = resource
        self._headers = headers
        self._sign = sign
        self._clock = clock
        self._transport: httpx.AsyncBaseTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_in_time = False  # whether the last send was
        self._resolver = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._unreported = 0
        self._reported_at: float | None = None

    def prepare(self) -> None:
        """Read and import what sending needs: that takes longer than an answer may wait."""
        import spass.models.providers.http  # noqa: F401

        self._headers.prepare()

    async def send(self, trace: Trace, seconds: float) -> None:
        """Send the spans of ``trace``, or drop them after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                problem = await self._post(encode(trace, self._resource))
            self._is_in_time = True
        except TimeoutError:
            self._is_in_time = False
            problem = f"no answer within {seconds} s"
        except Exception as error:  # noqa: BLE001 (whatever the exporter does, the answer must not fail)
            problem = type(error).__name__
        if problem is not None:
            self._report(problem, len(trace.spans))

    async def aclose(self) -> None:
        """Close open connections."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _post(self, body: bytes) -> str | None:
        """Send ``body`` and return what is wrong with the answer, or None."""
        import httpx

        if not self._is_in_time:
            await self._look_up()
        headers = {**_HEADERS, **await self._headers.read()}
        if self._sign is not None:
            headers |= await self._sign("POST", self._endpoint, body, headers)
        request = httpx.Request("POST", self._endpoint, headers=headers, content=body)
        response = await self._connected().handle_async_request(request)
        try:
            if response.status_code != 200:
                return f"status {response.status_code}"
            return _rejection(await _read(response))
        finally:
            await response.aclose()

    async def _look_up(self) -> None:
        """Look the host up in a thread of its own. If the resolver hangs, the look-ups of a few requests would occupy the threads
        in which those of all other hosts run."""
        parts = urlsplit(self._endpoint)
        with suppress(OSError):  # connecting says what is wrong
            await asyncio.get_running_loop().run_in_executor(self._resolver, socket.getaddrinfo, parts.hostname, parts.port)

    def _connected(self) -> "httpx.AsyncBaseTransport":
        """Return the transport of the running event loop, whose connections belong to it."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            from spass.models.providers.http import transport_to

            self._transport, self._loop = transport_to(self._endpoint), loop
        return self._transport

    def _report(self, problem: str, spans: int) -> None:
        self._unreported += spans
        now = self._clock()
        if self._reported_at is None or now >= self._reported_at + _LOG_SECONDS:
            write_event("spans_not_sent", {"why": problem, "spans": self._unreported})
            self._reported_at, self._unreported = now, 0


async def _read(response: "httpx.Response") -> bytes:
    """Return the body, or its beginning if it is long."""
    found = b""
    async for piece in response.aiter_raw():
        found += piece
        if len(found) > _MAX_ANSWER:
            break
    return found


def _rejection(body: bytes) -> str | None:
    """Return how many spans the answer says were rejected, or None. Its message is not shown: it may quote a span."""
    try:
        answer = json.loads(body or b"{}")
        rejected = int((answer.get("partialSuccess") or {}).get("rejectedSpans") or 0)
    except (ValueError, AttributeError, TypeError):
        return None  # accepted, with an answer of another encoding
    return f"{rejected} spans rejected" if rejected else None


def encode(trace: Trace, resource: Mapping[str, str]) -> bytes:
    """Return the trace as an ``ExportTraceServiceRequest``. Ids are hexadecimal, and integers of 64 bits are texts."""
    if trace.dropped:
        trace.root.attributes[DROPPED_SPANS] = trace.dropped
    spans: list[Json] = [_span(trace, span) for span in trace.spans]
    scope: Json = {"scope": {"name": "spass"}, "spans": spans, "schemaUrl": SCHEMA_URL}
    return dump_bytes(
        {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope], "schemaUrl": SCHEMA_URL}]}
    )


def _span(trace: Trace, span: Span) -> Json:
    encoded: dict[str, Json] = {
        "traceId": trace.id,
        "spanId": span.id,
        "flags": _SAMPLED,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.began),
        "endTimeUnixNano": str(span.ended),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id is not None:
        encoded["parentSpanId"] = span.parent_id
    if span.is_failed:
        encoded["status"] = {"code": _STATUS_ERROR}
    if span is trace.root and trace.link is not None:
        encoded["links"] = [{"traceId": trace.link.trace_id, "spanId": trace.link.span_id}]
    return encoded


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: AttributeValue) -> Json:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
