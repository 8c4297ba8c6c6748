"""Trace the requests and the messages of a process, if the operator exports spans."""

import json
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from typing import Final, TypeVar

from spass.core.ids import RequestId, TenantId
from spass.core.jobs import Delivery
from spass.core.traceparent import CURRENT_TRACE, CurrentTrace
from spass.models.backends import serves
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
from spass.tenancy.config import GatewayConfig

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
        """Await the ``work`` of a queue's message, in the trace of what sent it."""
        attributes = {TENANT: tenant, **message_attributes(queue, delivery.message)}
        return await self._trace(work, Span(f"process {queue}", CONSUMER, attributes=attributes), _carried(delivery.body))

    async def trace_step(self, work: Awaitable[T], tenant: TenantId, name: str, execution: Mapping[str, object]) -> T:
        """Await the ``work`` of one step of a state machine, in the trace of what started it. ``execution`` is its input."""
        traceparent = execution.get("traceparent")
        span = Span(name, INTERNAL, attributes={TENANT: tenant})
        return await self._trace(work, span, traceparent if isinstance(traceparent, str) else None)

    async def _trace(self, work: Awaitable[T], root: Span, traceparent: str | None) -> T:
        trace = Trace(root, self._sample)
        trace.join(traceparent)
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
        """Say whose request it is. Continue the trace of a tenant that ``is_trusted``, and link to that of another one."""
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


def _carried(body: str) -> str | None:
    """Return the ``traceparent`` of a message. Events of the bucket have none."""
    try:
        message = json.loads(body)
    except ValueError:
        return None
    traceparent = message.get("traceparent") if isinstance(message, dict) else None
    return traceparent if isinstance(traceparent, str) else None


@dataclass(frozen=True, slots=True)
class ConfiguredModels:
    """What ``gateway.yaml`` says about the models."""

    config: GatewayConfig

    def is_embedding(self, model: str) -> bool:
        return self.config.has_model(model) and self.config.model(model).kind == "embedding"

    def provider(self, model: str, backend: str | None) -> str | None:
        backends = self.config.llm.backends
        found = next((one for one in backends if one.name == backend), None) or next(
            (one for one in backends if serves(one, model)), None
        )
        return found.provider if found is not None else None
