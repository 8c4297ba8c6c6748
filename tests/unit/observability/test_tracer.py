"""The work of a message or of a step: its trace ends with it, however it ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from spass.core.ids import TenantId
from spass.core.jobs import Delivery
from spass.observability.headers import ExporterHeaders
from spass.observability.otlp import Exporter
from spass.observability.settings import TracesSettings
from spass.observability.tracer import Tracer
from tests.span_recorder import span_recorder

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DEMO = TenantId("demo")
Work: TypeAlias = Callable[[Tracer, Awaitable[None]], Awaitable[None]]


async def fail() -> None:
    raise RuntimeError("planted")


def message(tracer: Tracer, work: Awaitable[None]) -> Awaitable[None]:
    return tracer.trace_message(work, DEMO, "runs", Delivery("m1", 1, body=json.dumps({"traceparent": f"00-{TRACE}-{SPAN}-01"})))


def step(tracer: Tracer, work: Awaitable[None]) -> Awaitable[None]:
    return tracer.trace_step(work, DEMO, "compaction plan", {"traceparent": 7})


@pytest.mark.parametrize(("trace", "parent"), [(message, SPAN), (step, "")])
def test_failed_work_is_sent_as_an_error_without_its_text(trace: Work, parent: str) -> None:
    async def run(tracer: Tracer) -> None:
        with pytest.raises(RuntimeError, match="planted"):
            await trace(tracer, fail())
        await tracer.exporter.aclose()

    with span_recorder() as recorder:
        settings = TracesSettings(endpoint=recorder.url, headers={}, resource={})
        asyncio.run(run(Tracer(Exporter(recorder.url, {}, ExporterHeaders(settings, lambda _: {})), sample=0.0)))
        (span,) = recorder.spans
        assert b"planted" not in recorder.requests[0].body
    assert (span.is_error, span.attributes["error.type"], span.parent_id) == (True, "RuntimeError", parent)
