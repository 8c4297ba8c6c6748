"""A gateway that answers by a script and keeps the requests, for the tests of the client and of the command line."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve

Event: TypeAlias = Mapping[str, Any]
Respond: TypeAlias = Callable[[HttpRequest], HttpAnswer | None]

ASK_ANSWER: Mapping[str, Any] = {
    "request_id": "req_1",
    "agent": "orchestrator",
    "kind": "orchestrator",
    "model": "llama-4-scout",
    "content": "It is 30447.",
    "tool_results": [{"tool_name": "calculator", "content": "30447", "success": True, "duration_ms": 2}],
    "turns": 2,
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    "metadata": {},
}
ASK_EVENTS: Sequence[Event] = (
    {"type": "status_update", "status": "planning", "detail": None, "request_id": "req_1", "session_id": None},
    {"type": "token", "content": "Let me compute. ", "step": 1},
    {
        "type": "status_update",
        "status": "executing",
        "detail": None,
        "tool_call": {"id": "c1", "tool": "calculator", "args": {"expression": "1791 * 17"}},
    },
    {
        "type": "tool_call",
        "id": "c1",
        "tool": "calculator",
        "args": {},
        "result": {"result": 30447},
        "ok": True,
        "duration_ms": 2,
    },
    {"type": "token", "content": "It is ", "step": 2},
    {"type": "token", "content": "30447.", "step": 2},
    {"type": "status_update", "status": "complete", "detail": None},
    {"type": "usage", "usage": ASK_ANSWER["usage"], "cost_usd": 0.0},
    {"type": "done", "request_id": "req_1", "agent": "orchestrator", "session_id": None, "turns": 2, "finish_reason": "stop"},
)


@dataclass(slots=True)
class FakeGateway:
    """The address of the server, and the requests that it got."""

    url: str = ""
    requests: list[HttpRequest] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]


@contextmanager
def fake_gateway(respond: Respond) -> Iterator[FakeGateway]:
    """Serve ``respond`` on a loopback port until the block ends."""
    gateway = FakeGateway()

    def answer(request: HttpRequest) -> HttpAnswer | None:
        gateway.requests.append(request)
        return respond(request)

    with serve(answer) as gateway.url:
        yield gateway


def answer_ask(request: HttpRequest) -> HttpAnswer:
    """Answer ``POST /v1/ask``, as JSON or as a stream."""
    assert request.path == "/v1/ask"
    return events_answer(ASK_EVENTS) if request.json.get("stream") else json_answer(ASK_ANSWER)


def events_answer(events: Sequence[Event]) -> HttpAnswer:
    """Return a stream of ``events`` that begins with a comment."""
    return HttpAnswer(iter([b": keep-alive\n\n", *map(event_bytes, events)]), content_type="text/event-stream; charset=utf-8")


def event_bytes(event: Event) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


def error_answer(status: int, code: str, message: str = "It failed.", details: Mapping[str, Any] | None = None) -> HttpAnswer:
    error = {"code": code, "message": message, "type": "api_error", "param": None, "details": details or {}}
    return json_answer({"error": error, "request_id": "req_7"}, status)
