"""``Spass().managed``: what it sends, and how it reads a run's stream through connections that break."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from spass import Spass
from spass.sdk import SpassApiError, SpassUnreachable
from spass.sdk.managed import RECONNECTIONS
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.sdk.fake_gateway import error_answer, fake_gateway
from tests.unit.sdk.managed_runs import FRAMES, RUN, Frame, stream_answer

AGENT = {"id": "agt_1", "name": "reporter", "agent": "operative", "status": "idle"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def read(events: Iterator[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the type and the id of each event."""
    return [(event["type"], event["event_id"]) for event in events]


EVENTS = [("chunk", "1-1"), ("tool_calls", "1-2"), ("tool_result", "1-3"), ("chunk", "1-4"), ("chunk", "1-5"), ("chunk", "1-6")]


def test_each_method_sends_one_request() -> None:
    def respond(request: HttpRequest) -> HttpAnswer:
        return json_answer({"deleted": True} if request.method == "DELETE" else {**AGENT, "status": "cancelling"})

    schedule = {"expression": "rate(1 hour)", "input": "What is new?"}
    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        managed = spass.managed
        assert managed.create("reporter", "operative")["id"] == "agt_1"
        managed.create("r", "react", model="m", tools=[], system_prompt="s", params={"max_turns": 2}, schedule=schedule)
        managed.get("agt_1")
        managed.update("agt_1", {"schedule": None, "paused": True})
        managed.send("agt_1", "Hello")
        managed.run("agt_1")
        managed.run("agt_1", "What is new?")
        managed.get_run("agt_1", "run_1")
        managed.stop("agt_1", "run_1")
        assert managed.delete("a/b") is True
    agents = "/v1/managed-agents"
    assert [
        (path, request.json if request.body else None) for path, request in zip(gateway.paths, gateway.requests, strict=True)
    ] == [
        (f"POST {agents}", {"name": "reporter", "agent": "operative"}),
        (
            f"POST {agents}",
            {
                "name": "r",
                "agent": "react",
                "model": "m",
                "tools": [],
                "system_prompt": "s",
                "params": {"max_turns": 2},
                "schedule": schedule,
            },
        ),
        (f"GET {agents}/agt_1", None),
        (f"PATCH {agents}/agt_1", {"schedule": None, "paused": True}),
        (f"POST {agents}/agt_1/messages", {"content": "Hello"}),
        (f"POST {agents}/agt_1/run", {}),
        (f"POST {agents}/agt_1/run", {"input": "What is new?"}),
        (f"GET {agents}/agt_1/runs/run_1", None),
        (f"DELETE {agents}/agt_1/runs/run_1", None),
        (f"DELETE {agents}/a%2Fb", None),
    ]


def test_lists_are_read_page_by_page_while_they_are_iterated() -> None:
    def respond(request: HttpRequest) -> HttpAnswer:
        path, _, query = request.path.partition("?cursor=")
        field = "agents" if path.endswith("managed-agents") else path.rpartition("/")[2]
        number = int(query or 0)
        return json_answer({field: [{"id": f"{field}-{number}"}], "next_cursor": str(number + 1) if number < 2 else None})

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        assert next(spass.managed.list()) == {"id": "agents-0"}
        assert len(gateway.requests) == 1
        for field, entries in (
            ("agents", spass.managed.list()),
            ("messages", spass.managed.messages("agt_1")),
            ("runs", spass.managed.runs("agt_1")),
        ):
            assert [entry["id"] for entry in entries] == [f"{field}-{number}" for number in range(3)]


def test_a_list_that_leads_in_a_circle_is_an_error() -> None:
    def respond(_: HttpRequest) -> HttpAnswer:
        return json_answer({"agents": [AGENT], "next_cursor": "again"})

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass, pytest.raises(SpassApiError) as raised:
        list(spass.managed.list())
    assert (raised.value.code, len(gateway.requests)) == ("invalid_answer", 2)


def test_one_name_instead_of_a_list_of_tools_is_refused() -> None:
    with fake_gateway(lambda _: json_answer(AGENT)) as gateway, Spass(gateway.url) as spass, pytest.raises(TypeError):
        spass.managed.create("reporter", "operative", tools="calculator")
    assert gateway.requests == []


def test_the_stream_of_a_message_has_the_fields_of_each_frame() -> None:
    with fake_gateway(lambda _: stream_answer(FRAMES)) as gateway, Spass(gateway.url) as spass:
        events = list(spass.managed.stream("agt_1", "What is 2+2?"))
    (request,) = gateway.requests
    assert (request.path, request.json) == ("/v1/managed-agents/agt_1/messages", {"content": "What is 2+2?", "stream": True})
    assert [(event["type"], event["event_id"]) for event in events] == EVENTS
    assert events[1]["calls"] == [{"id": "call_1", "tool_name": "calculator", "arguments": '{"expression":"2+2"}'}]
    assert events[2]["output"] == "4"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(event["id"] == RUN for event in events if event["type"] == "chunk")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_stream_is_read_in_whatever_pieces_it_arrives(size: int) -> None:
    def pieces() -> Iterator[bytes]:
        data = b"".join(_pieces(FRAMES))
        yield from (data[start : start + size] for start in range(0, len(data), size))

    with (
        fake_gateway(lambda _: HttpAnswer(pieces(), content_type="text/event-stream")) as gateway,
        Spass(gateway.url) as spass,
    ):
        assert read(spass.managed.stream("agt_1", "Hello")) == EVENTS


def _pieces(frames: Sequence[Frame], *, is_whole: bool = True) -> Iterator[bytes]:
    body = stream_answer(frames, is_whole=is_whole).body
    assert not isinstance(body, bytes)
    return body


class BreakingGateway:
    """A gateway that breaks off after the ``first`` frames of the run, then after each further one. ``[DONE]`` is the last."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, request: HttpRequest) -> HttpAnswer:
        last = request.headers.get("Last-Event-ID")
        start = int(last.partition("-")[2]) if last else 0
        end = self.first if request.method == "POST" else start + 1
        self.first += 1
        return stream_answer(FRAMES[start:end], is_whole=end > len(FRAMES), first=start + 1)


@pytest.mark.parametrize("first", range(len(FRAMES) + 1))
def test_a_stream_that_breaks_anywhere_goes_on_after_its_last_event(first: int) -> None:
    with fake_gateway(BreakingGateway(first)) as gateway, Spass(gateway.url) as spass:
        assert read(spass.managed.stream("agt_1", "Hello")) == EVENTS
    posts = [request for request in gateway.requests if request.method == "POST"]
    assert len({request.headers["Idempotency-Key"] for request in posts}) == 1, "another key would start another run"
    assert {request.path for request in gateway.requests if request.method == "GET"} <= {
        f"/v1/managed-agents/agt_1/runs/{RUN}/stream"
    }
    follows = [request.headers["Last-Event-ID"] for request in gateway.requests if request.method == "GET"]
    assert follows == [f"1-{number}" for number in range(max(first, 1), len(FRAMES) + 1)]


def test_a_run_is_followed_from_its_start_or_after_an_event() -> None:
    with fake_gateway(BreakingGateway(0)) as gateway, Spass(gateway.url) as spass:
        assert read(spass.managed.follow("agt_1", RUN)) == EVENTS
        assert read(spass.managed.follow("agt_1", RUN, after="1-4")) == EVENTS[4:]
    assert {request.method for request in gateway.requests} == {"GET"}


def test_a_stream_that_has_ended_with_the_last_event_gives_no_event() -> None:
    with fake_gateway(lambda _: HttpAnswer(status=204)) as gateway, Spass(gateway.url) as spass:
        assert list(spass.managed.follow("agt_1", RUN, after="1-6")) == []


def test_a_newer_attempt_is_read_from_its_start() -> None:
    answers = iter([stream_answer(FRAMES[:3], is_whole=False), stream_answer(FRAMES, attempt=2)])
    with fake_gateway(lambda _: next(answers)) as gateway, Spass(gateway.url) as spass:
        ids = [event_id for _, event_id in read(spass.managed.follow("agt_1", RUN))]
    assert ids == ["1-1", "1-2", "1-3", *(f"2-{number}" for number in range(1, 7))]


def test_a_stream_gives_up_after_connections_without_a_new_event() -> None:
    first: list[HttpAnswer] = [stream_answer(FRAMES[:2], is_whole=False)]

    def respond(_: HttpRequest) -> HttpAnswer | None:
        return first.pop() if first else None

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        stream = spass.managed.stream("agt_1", "Hello")
        assert [next(stream)["event_id"], next(stream)["event_id"]] == ["1-1", "1-2"]
        with pytest.raises(SpassUnreachable):
            next(stream)
    assert len(gateway.requests) == 1 + RECONNECTIONS


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (error_answer(503, "storage_unavailable"), 3),
        (error_answer(429, "rate_limited"), 3),
        (HttpAnswer(b"<html>Bad gateway</html>", 502, "text/html"), 3),
        (error_answer(404, "stream_not_found"), 2),
        (error_answer(401, "invalid_token"), 2),
    ],
    ids=["503", "429", "502", "404", "401"],
)
def test_only_a_temporary_error_is_waited_out(answer: HttpAnswer, requests: int) -> None:
    answers = iter([stream_answer(FRAMES[:2], is_whole=False), answer, stream_answer(FRAMES[2:], first=3)])
    with fake_gateway(lambda _: next(answers)) as gateway, Spass(gateway.url) as spass:
        stream = spass.managed.stream("agt_1", "Hello")
        if requests == 3:
            assert read(stream) == EVENTS
        else:
            with pytest.raises(SpassApiError) as raised:
                list(stream)
            assert raised.value.status == answer.status
    assert len(gateway.requests) == requests


def test_a_failed_run_is_raised_after_the_events_before_it() -> None:
    envelope = {"error": {"code": "turn_lost", "message": "The worker died."}, "request_id": "req_7"}

    def pieces() -> Iterator[bytes]:
        yield from _pieces(FRAMES[:2], is_whole=False)
        yield f"event: error\ndata: {json.dumps(envelope)}\n\n".encode()

    with (
        fake_gateway(lambda _: HttpAnswer(pieces(), content_type="text/event-stream")) as gateway,
        Spass(gateway.url) as spass,
    ):
        stream = spass.managed.stream("agt_1", "Hello")
        assert [next(stream)["type"], next(stream)["type"]] == ["chunk", "tool_calls"]
        with pytest.raises(SpassApiError) as raised:
            next(stream)
    assert (raised.value.status, raised.value.code, raised.value.request_id) == (200, "turn_lost", "req_7")
    assert len(gateway.requests) == 1


@pytest.mark.parametrize("line", ["data: {", "data: []", "id: x\ndata: {}", "data: " + "[" * 100_000])
def test_a_frame_that_is_not_a_gateways_is_an_error(line: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield from _pieces(FRAMES[:1], is_whole=False)
        yield f"{line}\n\n".encode()

    with (
        fake_gateway(lambda _: HttpAnswer(pieces(), content_type="text/event-stream")) as gateway,
        Spass(gateway.url) as spass,
        pytest.raises(SpassApiError) as raised,
    ):
        list(spass.managed.stream("agt_1", "Hello"))
    assert raised.value.code == "invalid_answer"


def test_a_new_kind_of_event_is_passed_on_under_its_name() -> None:
    frames: list[Frame] = [*FRAMES[:1], ("progress", {"percent": 5}), *FRAMES[1:]]
    with fake_gateway(lambda _: stream_answer(frames)) as gateway, Spass(gateway.url) as spass:
        events = list(spass.managed.stream("agt_1", "Hello"))
    assert events[1] == {"type": "progress", "percent": 5, "event_id": "1-2"}
