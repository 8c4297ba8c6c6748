"""Send spans once. Whatever the exporter does, the spans are dropped in time, and the log says so once a minute."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import pytest

from spass.core.errors import StorageUnavailable
from spass.observability.conventions import SERVER
from spass.observability.headers import ExporterHeaders
from spass.observability.otlp import Exporter
from spass.observability.settings import TracesSettings
from spass.observability.trace import Span, Trace
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from tests.span_recorder import span_recorder

RESOURCE = {"service.name": "spass"}


def new_trace() -> Trace:
    trace = Trace(Span("GET /healthz", SERVER), 1.0)
    trace.close()
    return trace


def headers_of(parameter: str | None = None, read: Callable[[Sequence[str]], Mapping[str, str]] | None = None) -> ExporterHeaders:
    settings = TracesSettings(
        endpoint="http://x", headers={"x-key": "of the environment"}, headers_parameter=parameter, resource={}
    )
    return ExporterHeaders(settings, read or (lambda _: {}))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def send(exporter: Exporter, *, times: int = 1, seconds: float = 5.0) -> None:
    async def run() -> None:
        for _ in range(times):
            await exporter.send(new_trace(), seconds)
        await exporter.aclose()

    asyncio.run(run())


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_trace_is_one_request_that_opentelemetry_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    with span_recorder() as recorder:
        send(Exporter(recorder.url, RESOURCE, headers_of()), times=2)
        assert [span.name for span in recorder.spans] == ["GET /healthz"] * 2
        (resource,) = recorder.bodies[0].resource_spans
        assert [span.flags for span in resource.scope_spans[0].spans] == [1]
        assert resource.schema_url == resource.scope_spans[0].schema_url == "https://opentelemetry.io/schemas/1.44.0"
        assert [(one.key, one.value.string_value) for one in resource.resource.attributes] == [("service.name", "spass")]
        assert [request.headers["x-key"] for request in recorder.requests] == ["of the environment"] * 2
    assert lines(capsys) == []


BAD: Mapping[str, tuple[Callable[[HttpRequest], HttpAnswer | None], str]] = {
    "refuses": (lambda _: json_answer({"message": "planted"}, 403), "status 403"),
    "redirects": (lambda request: HttpAnswer(status=307, headers={"Location": request.path}), "status 307"),
    "closes": (lambda _: None, "RemoteProtocolError"),
    "rejects": (lambda _: json_answer({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "planted"}}), "3 spans rejected"),
    "never ends": (lambda _: HttpAnswer(repeat(b" " * 65536)), ""),
    "answers another encoding": (lambda _: HttpAnswer(b"\x0a\x00\xff"), ""),
    "answers a list": (lambda _: json_answer([]), ""),
    "warns": (lambda _: json_answer({"partialSuccess": {"errorMessage": "planted"}}), ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_one_line_without_its_text(capsys: pytest.CaptureFixture[str], name: str) -> None:
    respond, why = BAD[name]
    requests: list[HttpRequest] = []

    def receive(request: HttpRequest) -> HttpAnswer | None:
        requests.append(request)
        return respond(request)

    with serve(receive) as url:
        send(Exporter(url, RESOURCE, headers_of()))
    assert len(requests) == 1, "nothing is repeated, and no redirect followed"
    found = [(line["event"], line["why"], line["spans"]) for line in lines(capsys)]
    assert found == ([("spans_not_sent", why, 1)] if why else [])


def test_a_port_that_nobody_listens_at_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        send(Exporter(f"http://127.0.0.1:{free.getsockname()[1]}/", RESOURCE, headers_of()))
    assert [line["why"] for line in lines(capsys)] == ["ConnectError"]


def test_an_exporter_that_hangs_is_left_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def hang(_: HttpRequest) -> None:
        over.wait(30)

    with serve(hang) as url:
        send(Exporter(url, RESOURCE, headers_of()), seconds=0.05)
        over.set()
    assert [line["why"] for line in lines(capsys)] == ["no answer within 0.05 s"]


def test_a_resolver_that_hangs_does_not_take_the_threads_of_other_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    over, waiting = threading.Event(), list[str]()

    def hang(host: str, *_: object, **__: object) -> None:
        waiting.append(host)
        over.wait(30)
        raise socket.gaierror

    async def run() -> None:
        exporter = Exporter("https://collector.example/v1/traces", RESOURCE, headers_of())
        await asyncio.gather(*(exporter.send(new_trace(), 0.05) for _ in range(20)))
        over.set()

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    asyncio.run(run())
    assert waiting == ["collector.example"]


def test_failures_are_one_line_in_a_minute_that_counts_all_spans(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with serve(lambda _: json_answer({}, 500)) as url:
        exporter = Exporter(url, RESOURCE, headers_of(), clock=clock)
        send(exporter, times=3)
        clock.now += 59
        send(exporter)
        clock.now += 1
        send(exporter)
    assert [line["spans"] for line in lines(capsys)] == [1, 4]


def test_the_headers_of_a_parameter_are_read_once_and_decoded() -> None:
    reads: list[Sequence[str]] = []

    def read(names: Sequence[str]) -> Mapping[str, str]:
        reads.append(names)
        return {"/spass/prod/TRACE_HEADERS": "authorization=Basic%20QQ%3D%3D"}

    with span_recorder() as recorder:
        headers = headers_of("/spass/prod/TRACE_HEADERS", read)
        exporter = Exporter(recorder.url, RESOURCE, headers)
        exporter.prepare()
        send(exporter, times=2)
        sent = [(request.headers["authorization"], request.headers["x-key"]) for request in recorder.requests]
        assert sent == [("Basic QQ==", "of the environment")] * 2
    assert reads == [["/spass/prod/TRACE_HEADERS"]]


@pytest.mark.parametrize(
    ("value", "why"), [("planted", "TracesMisconfigured"), (StorageUnavailable("planted"), "StorageUnavailable")]
)
def test_a_parameter_that_cannot_be_used_is_one_line_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str | Exception, why: str
) -> None:
    monkeypatch.setattr("spass.models.provider_keys._REQUEST_SECONDS", 0.0)

    def read(names: Sequence[str]) -> Mapping[str, str]:
        if isinstance(value, Exception):
            raise value
        return {names[0]: value}

    with span_recorder() as recorder:
        send(Exporter(recorder.url, RESOURCE, headers_of("/a/b", read)))
        assert recorder.requests == []
    (line,) = lines(capsys)
    assert (line["why"], "planted" in str(line)) == (why, False)


def test_a_request_is_signed_with_its_body_and_headers() -> None:
    signed: list[tuple[str, str, bytes, Mapping[str, str]]] = []

    async def sign(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        signed.append((method, url, body, dict(headers)))
        return {"authorization": "AWS4-HMAC-SHA256"}

    with span_recorder() as recorder:
        send(Exporter(recorder.url, RESOURCE, headers_of(), sign))
        (request,) = recorder.requests
        assert request.headers["authorization"] == "AWS4-HMAC-SHA256"
        ((method, url, body, headers),) = signed
        assert (method, url, body) == ("POST", recorder.url, request.body)
        assert headers.items() <= dict(request.headers).items()
