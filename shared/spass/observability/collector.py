"""Turn the events of the bus into spans of the trace of the work that publishes them."""

from collections.abc import Callable
from itertools import chain
from typing import Final

from spass.core.bus import (
    AGENT_TURN_END,
    AGENT_TURN_START,
    INFERENCE_END,
    INFERENCE_START,
    TOOL_CALL_END,
    TOOL_CALL_START,
    EventBus,
)
from spass.core.bus_events import AgentTurnEnd, InferenceEnd, InferenceStart, ToolCallEnd
from spass.core.traceparent import CURRENT_TRACE
from spass.models.backends import serves
from spass.observability.conventions import CHAT, EMBEDDINGS, EXECUTE_TOOL, INVOKE_AGENT, PROVIDER, SpanForm, provider_name
from spass.observability.trace import Span, Start, Trace
from spass.tenancy.config import GatewayConfig

_NO_ERROR: Final = (None, "ok", "cancelled")


class SpanCollector:
    """Subscribe to the events of a bus. ``config`` is not called before the first call of a model."""

    def __init__(self, config: Callable[[], GatewayConfig]) -> None:
        self._config = config

    def subscribe(self, bus: EventBus) -> None:
        bus.subscribe(AGENT_TURN_START, lambda start: _begin(INVOKE_AGENT, start))
        bus.subscribe(TOOL_CALL_START, lambda start: _begin(EXECUTE_TOOL, start))
        bus.subscribe(INFERENCE_START, self._begin_inference)
        bus.subscribe(INFERENCE_END, self._end_inference)
        bus.subscribe(TOOL_CALL_END, lambda end: _end(EXECUTE_TOOL, end, end.status))
        bus.subscribe(AGENT_TURN_END, lambda end: _end(INVOKE_AGENT, end, end.error))

    def _form(self, event: InferenceStart | InferenceEnd) -> SpanForm:
        config = self._config()
        is_embedding = config.has_model(event.model) and config.model(event.model).kind == "embedding"
        return EMBEDDINGS if is_embedding else CHAT

    def _begin_inference(self, start: InferenceStart) -> None:
        _begin(self._form(start), start)

    def _end_inference(self, end: InferenceEnd) -> None:
        if (span := _end(self._form(end), end, end.status)) is not None:
            span.attributes[PROVIDER] = provider_name(self._provider(end))

    def _provider(self, end: InferenceEnd) -> str | None:
        """Return the provider of the call's backend, or of the first one that serves the model, or None."""
        backends = self._config().llm.backends
        named = (one.provider for one in backends if one.name == end.backend)
        return next(chain(named, (one.provider for one in backends if serves(one, end.model))), None)


def _begin(form: SpanForm, start: Start) -> None:
    if isinstance(trace := CURRENT_TRACE.get(), Trace):
        trace.begin(start, Span(form.name(start), form.kind, attributes=form.attributes(start)))


def _end(form: SpanForm, end: AgentTurnEnd | InferenceEnd | ToolCallEnd, status: str | None) -> Span | None:
    if not isinstance(trace := CURRENT_TRACE.get(), Trace):
        return None
    span = trace.end(end)
    if span is not None:
        span.attributes.update(form.attributes(end))
    if status not in _NO_ERROR:
        trace.fail(span, str(status))
    return span
