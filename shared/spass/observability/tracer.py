"""Trace the requests and the messages of a process, if the operator exports spans."""

import json
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from typing import Final, TypeVar

from spass.core.ids import RequestId, TenantId
from spass.core.jobs import Delivery
from spass.core.traceparent import CURRENT_TRACE, CurrentTrace
from spass.observability.conventions import (
    CONSUMER,
    INTERNAL,
    REQUEST_ID,
    SERVER,
    TENANT,
    message_attributes,
    request_attributes,
    request_name,
)
from spass.observability.otlp import Exporter
from spass.observability.trace import Span, Trace

BUFFERED_SECONDS: Final = 0.3
"""Seconds that an answer which is not a stream waits for its spans to be sent."""
STREAMED_SECONDS: Final = 1.0
"""Seconds that the end of a stream, or of the work of a queue's message, waits for its spans to be sent."""

T = TypeVar("T")


class Tracer:
    """The traces of a process. ``sample`` is the part of them that is sent, from 0 to 1."""

    def __init__(self, exporter: Exporter, sample: float) -> None:
        self.exporter = exporter
        self._sample = sample

    def begin_request(self, method: str, scheme: str, traceparents: Sequence[str]) -> "RequestTrace":
        """Begin the trace of an HTTP request. ``traceparents`` are the values of its header: more than one count as none."""
        trace = Trace(Span(method, SERVER), self._sample)
        remote = traceparents[0] if len(traceparents) == 1 else None
        return RequestTrace(self.exporter, trace, method, scheme, remote, CURRENT_TRACE.set(trace))

    async def trace_message(self, work: Awaitable[T], tenant: TenantId, queue: str, delivery: Delivery) -> T:
        """Await the ``work`` of a queue's message, in the trace of what sent it. Events of the bucket begin a trace."""
        attributes = {TENANT: tenant, **message_attributes(queue, delivery.message)}
        return await self._trace(work, Span(f"process {queue}", CONSUMER, attributes=attributes), json.loads(delivery.body))

    async def trace_step(self, work: Awaitable[T], tenant: TenantId, name: str, execution: Mapping[str, object]) -> T:
        """Await the ``work`` of one step of a state machine, in the trace of what started it. ``execution`` is its input."""
        return await self._trace(work, Span(name, INTERNAL, attributes={TENANT: tenant}), execution)

    async def _trace(self, work: Awaitable[T], root: Span, message: Mapping[str, object]) -> T:
        """Await ``work`` in the trace that ``message`` carries, or in a new one."""
        trace, traceparent = Trace(root, self._sample), message.get("traceparent")
        trace.join(traceparent if isinstance(traceparent, str) else None)
        token = CURRENT_TRACE.set(trace)
        try:
            return await work
        except Exception as error:
            trace.fail(root, type(error).__name__)
            raise
        finally:
            CURRENT_TRACE.reset(token)
            await send(self.exporter, trace, STREAMED_SECONDS)


@dataclass(slots=True)
class RequestTrace:
    """The trace of one HTTP request."""

    exporter: Exporter
    trace: Trace
    method: str
    scheme: str
    remote: str | None
    token: "Token[CurrentTrace | None]"
    has_ended: bool = False

    def identify(self, tenant: TenantId, *, is_trusted: bool) -> None:
        """Name the tenant of the request. Continue the client's trace if the tenant ``is_trusted``, or else link to it."""
        self.trace.root.attributes[TENANT] = tenant
        self.trace.join(self.remote, is_linked=not is_trusted)

    async def end(self, request_id: RequestId, route: str | None, status: int, error: str | None, *, is_streamed: bool) -> None:
        """End the trace and send it. ``error`` is the code of the error, of a stream also one after its beginning. A second call
        has no effect."""
        if self.has_ended:
            return
        self.has_ended = True
        root = self.trace.root
        root.name = request_name(self.method, route)
        root.attributes |= {REQUEST_ID: request_id, **request_attributes(self.method, self.scheme, route, status)}
        if status >= 500 or (error is not None and status < 400):
            self.trace.fail(root, error or str(status))
        await send(self.exporter, self.trace, STREAMED_SECONDS if is_streamed else BUFFERED_SECONDS)

    def leave(self) -> None:
        """Leave the trace. Call this last, in the context that began it."""
        CURRENT_TRACE.reset(self.token)


async def send(exporter: Exporter, trace: Trace, seconds: float) -> None:
    """End ``trace``. Send it within ``seconds`` if it belongs to the sample, or has an error or a slow turn."""
    trace.close()
    if trace.is_kept or trace.is_sampled:
        await exporter.send(trace, seconds)
