"""The client: what it sends, what it returns, and the errors it raises."""

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from spass import Spass
from spass.sdk import SpassApiError, SpassUnreachable
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.sdk.fake_gateway import (
    ASK_ANSWER,
    ASK_EVENTS,
    Event,
    answer_ask,
    error_answer,
    event_bytes,
    events_answer,
    fake_gateway,
)

TOKEN = "tok-9f8e7d6c5b4a"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPASS_URL", "SPASS_TOKEN", "SPASS_USER"):
        monkeypatch.delenv(name, raising=False)


def test_ask_ask_full_and_stream_give_the_same_answer() -> None:
    with fake_gateway(answer_ask) as gateway, Spass(gateway.url) as spass:
        text = spass.ask("What is 1791 * 17?", agent="react", tools=["calculator"])
        full = spass.ask_full("What is 1791 * 17?", agent="react", tools=["calculator"])
        events = list(spass.stream("What is 1791 * 17?", agent="react", tools=["calculator"]))
    assert full == ASK_ANSWER
    assert text == full["content"]
    assert events == list(ASK_EVENTS)
    tokens = [event for event in events if event["type"] == "token"]
    assert "".join(event["content"] for event in tokens if event["step"] == tokens[-1]["step"]) == text


def test_a_request_has_only_the_arguments_that_were_given() -> None:
    with fake_gateway(answer_ask) as gateway, Spass(gateway.url) as spass:
        spass.ask("Hello")
        spass.ask(
            "Hello",
            agent="simple",
            model="m",
            tools=[],
            system_prompt="Be brief.",
            params={"max_turns": 5},
            context={"conversation": [{"role": "user", "content": "ü"}]},
        )
    assert [request.json for request in gateway.requests] == [
        {"input": "Hello", "agent": "orchestrator"},
        {
            "input": "Hello",
            "agent": "simple",
            "model": "m",
            "tools": [],
            "system_prompt": "Be brief.",
            "params": {"max_turns": 5},
            "context": {"conversation": [{"role": "user", "content": "ü"}]},
        },
    ]


def test_a_gateway_on_this_machine_gets_the_demo_token() -> None:
    with fake_gateway(answer_ask) as gateway, Spass(gateway.url) as spass:
        spass.ask("Hello")
    headers = gateway.requests[0].headers
    assert (headers["Authorization"], headers["SPASS-User-Id"]) == ("Bearer demo-token", "demo")


def test_the_environment_gives_what_the_arguments_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gateway(lambda _: json_answer(ASK_ANSWER)) as gateway:
        monkeypatch.setenv("SPASS_URL", f"{gateway.url}/stage/")
        monkeypatch.setenv("SPASS_TOKEN", TOKEN)
        monkeypatch.setenv("SPASS_USER", "ada")
        with Spass(user="bob") as spass:
            spass.ask("Hello")
    assert gateway.paths == ["POST /stage/v1/ask"]
    headers = gateway.requests[0].headers
    assert (headers["Authorization"], headers["SPASS-User-Id"]) == (f"Bearer {TOKEN}", "bob")


def test_another_machine_gets_no_token_that_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr("httpx.Client.__init__", lambda _, **options: seen.append(options["headers"].get("Authorization")))
    Spass("https://gateway.example/prod")
    Spass("http://localhost:3000")
    Spass("http://[::1]:3000")
    assert seen == [None, "Bearer demo-token", "Bearer demo-token"]


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with fake_gateway(answer_ask) as gateway, Spass(gateway.url) as spass:
        assert spass.ask("Hello") == "It is 30447."


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:3000",
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http://host/?a=1",
        "http://host/#a",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://a..b",
        f"http://{'a' * 64}.example",
        "http://xn--a.example",
    ],
)
def test_a_url_that_is_not_a_gateways_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="SPASS_URL") as refused:
        Spass(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://user:secret@host:1"),
        ("HTTPS_PROXY", "gopher://user:secret@host:1"),
        ("HTTPS_PROXY", "http://user:secret"),
        ("SSL_CERT_FILE", "/nonexistent/secret.pem"),
    ],
)
def test_a_wrong_variable_for_connections_is_named_but_not_shown(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable) as refused:
        Spass("https://gateway.example")
    assert "secret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_can_hold_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="SPASS_TOKEN") as refused:
        Spass("http://127.0.0.1:3000", token)
    assert token not in str(refused.value)


GENERATORS: dict[str, Callable[[Spass], Iterator[Any]]] = {
    "stream": lambda spass: spass.stream("Hello"),
    "send": lambda spass: spass.send("concise-de", "ses_1", "Hello"),
    "managed.list": lambda spass: spass.managed.list(),
    "managed.messages": lambda spass: spass.managed.messages("agt_1"),
    "managed.runs": lambda spass: spass.managed.runs("agt_1"),
    "managed.stream": lambda spass: spass.managed.stream("agt_1", "Hello"),
    "managed.follow": lambda spass: spass.managed.follow("agt_1", "run_1"),
}
CALLS: dict[str, Callable[[Spass], object]] = {
    "ask": lambda spass: spass.ask("Hello"),
    "ask_full": lambda spass: spass.ask_full("Hello"),
    "kinds": lambda spass: spass.kinds(),
    "agents": lambda spass: spass.agents(),
    "tools": lambda spass: spass.tools(),
    "create_session": lambda spass: spass.create_session("concise-de"),
    "managed.create": lambda spass: spass.managed.create("reporter", "operative"),
    "managed.get": lambda spass: spass.managed.get("agt_1"),
    "managed.update": lambda spass: spass.managed.update("agt_1", {"paused": True}),
    "managed.delete": lambda spass: spass.managed.delete("agt_1"),
    "managed.send": lambda spass: spass.managed.send("agt_1", "Hello"),
    "managed.run": lambda spass: spass.managed.run("agt_1"),
    "managed.get_run": lambda spass: spass.managed.get_run("agt_1", "run_1"),
    "managed.stop": lambda spass: spass.managed.stop("agt_1", "run_1"),
    **GENERATORS,
    "with": lambda spass: spass.__enter__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_call_after_close_raises_runtime_error(call: Callable[[Spass], object]) -> None:
    with fake_gateway(answer_ask) as gateway:
        spass = Spass(gateway.url)
        spass.close()
        spass.close()
        with pytest.raises(RuntimeError, match="closed"):
            call(spass)
    assert gateway.requests == []


def test_a_stream_ends_with_runtime_error_when_the_client_is_closed() -> None:
    with fake_gateway(answer_ask) as gateway:
        spass = Spass(gateway.url)
        unread = spass.stream("Hello")
        spass.close()
        with pytest.raises(RuntimeError, match="closed"):
            next(unread)


def _read_to_the_end(call: Callable[[Spass], Iterator[Any]]) -> Callable[[Spass], object]:
    return lambda spass: list(call(spass))


FAILING: dict[str, Callable[[Spass], object]] = {
    **{name: call for name, call in CALLS.items() if name not in {*GENERATORS, "with"}},
    **{name: _read_to_the_end(call) for name, call in GENERATORS.items()},
}


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING.keys())
def test_an_error_answer_is_raised_with_all_its_parts(call: Callable[[Spass], object]) -> None:
    def refuse(_: HttpRequest) -> HttpAnswer:
        return error_answer(409, "session_busy", "Another turn runs.", {"job_id": "job_1"})

    with fake_gateway(refuse) as gateway, Spass(gateway.url) as spass, pytest.raises(SpassApiError) as raised:
        call(spass)
    error = raised.value
    assert (error.status, error.code, error.message, error.request_id) == (409, "session_busy", "Another turn runs.", "req_7")
    assert error.details == {"job_id": "job_1"}
    assert str(error) == "session_busy: Another turn runs."


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING.keys())
@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(b"<html>Bad gateway</html>", 502, "text/html"),
        HttpAnswer(b"<html>Welcome</html>", 200, "text/html"),
        HttpAnswer(b"[]", 200),
        HttpAnswer(b"[" * 100_000, 200),
        HttpAnswer(b'{"error": "no"}', 500),
        HttpAnswer(b"", 302, headers={"Location": "http://127.0.0.1:9/"}),
        HttpAnswer(b"{}", 308),
    ],
    ids=["html 502", "html 200", "a list", "deep", "another envelope", "302", "308"],
)
def test_an_answer_of_another_server_is_an_error(call: Callable[[Spass], object], answer: HttpAnswer) -> None:
    with fake_gateway(lambda _: answer) as gateway, Spass(gateway.url) as spass, pytest.raises(SpassApiError) as raised:
        call(spass)
    assert (raised.value.status, raised.value.code) == (answer.status, "invalid_answer")
    assert len(gateway.requests) == 1


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING.keys())
def test_a_gateway_that_does_not_answer_is_unreachable(call: Callable[[Spass], object]) -> None:
    with fake_gateway(lambda _: None) as gateway, Spass(gateway.url, TOKEN) as spass:
        with pytest.raises(SpassUnreachable) as closed:
            call(spass)
        assert len(gateway.requests) == 1, "the client repeated a request"
    with Spass(gateway.url, TOKEN) as spass, pytest.raises(SpassUnreachable) as refused:
        call(spass)
    for raised in (closed.value, refused.value):
        assert gateway.url in str(raised)
        assert raised.__context__ is None
        assert TOKEN not in "".join(traceback.format_exception(raised))


def test_neither_the_client_nor_its_errors_show_the_token() -> None:
    with fake_gateway(lambda _: error_answer(401, "invalid_token")) as gateway, Spass(gateway.url, TOKEN) as spass:
        with pytest.raises(SpassApiError) as raised:
            spass.ask("Hello")
        assert TOKEN not in repr(spass) + repr(vars(spass)) + repr(spass._transport.endpoint)
    assert TOKEN not in repr(raised.value) + repr(vars(raised.value)) + "".join(traceback.format_exception(raised.value))


def test_a_stream_is_read_in_whatever_pieces_it_arrives() -> None:
    events: list[Event] = [{"type": "token", "content": "a\u2028b\x85ü", "step": 1}, {"type": "done", "session_id": None}]
    stream = b"".join(map(event_bytes, events)).replace(b"\n", b"\r\n")

    def respond(request: HttpRequest) -> HttpAnswer:
        size = request.json["params"]["size"]
        pieces = (stream[at : at + size] for at in range(0, len(stream), size))
        return HttpAnswer(pieces, content_type="text/event-stream")

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        for size in (1, 2, 3, 7, len(stream)):
            assert list(spass.stream("Hello", params={"size": size})) == events


def test_an_error_in_a_stream_is_raised_after_the_events_before_it() -> None:
    failed = {"type": "status_update", "status": "error", "detail": None}
    error = {"code": "upstream_error", "message": "The model failed.", "type": "api_error", "param": None, "details": {"a": 1}}
    events = [*ASK_EVENTS[:2], failed, {"type": "error", "error": error, "request_id": "req_1"}]
    seen: list[Any] = []
    with (
        fake_gateway(lambda _: events_answer(events)) as gateway,
        Spass(gateway.url) as spass,
        pytest.raises(SpassApiError) as raised,
    ):
        seen.extend(spass.stream("Hello"))
    assert seen == events[:-1]
    assert (raised.value.status, raised.value.code, raised.value.request_id) == (200, "upstream_error", "req_1")
    assert raised.value.details == {"a": 1}


def _stream(body: Iterator[bytes], _: HttpRequest) -> HttpAnswer:
    return HttpAnswer(body, content_type="text/event-stream")


def test_a_stream_that_breaks_off_is_unreachable() -> None:
    def half_an_event() -> Iterator[bytes]:
        yield event_bytes(ASK_EVENTS[0])
        yield event_bytes(ASK_EVENTS[1])[:-9]

    for body in (iter(map(event_bytes, ASK_EVENTS[:4])), half_an_event()):
        with fake_gateway(partial(_stream, body)) as gateway, Spass(gateway.url) as spass:
            stream = spass.stream("Hello")
            assert next(stream) == ASK_EVENTS[0]
            with pytest.raises(SpassUnreachable, match="broke"):
                list(stream)


@pytest.mark.parametrize(
    "data",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: {"type": 1}\n\n',
        b"data: " + b"x" * (17 << 20),
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
def test_a_stream_that_is_not_a_gateways_is_an_error(data: bytes) -> None:
    answer = HttpAnswer(iter([data]), content_type="text/event-stream")
    with fake_gateway(lambda _: answer) as gateway, Spass(gateway.url) as spass, pytest.raises(SpassApiError) as raised:
        list(spass.stream("Hello"))
    assert raised.value.code == "invalid_answer"


def test_closing_a_stream_closes_its_connection() -> None:
    disconnected: list[bool] = []
    ended = threading.Event()

    def respond(request: HttpRequest) -> HttpAnswer:
        def body() -> Iterator[bytes]:
            yield event_bytes(ASK_EVENTS[0])
            disconnected.append(request.wait_for_disconnect(5))
            ended.set()

        return HttpAnswer(body(), content_type="text/event-stream")

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        stream = spass.stream("Hello")
        next(stream)
        stream.close()
        assert ended.wait(10)
    assert disconnected == [True]


def test_the_list_of_agents_is_read_to_its_last_page_and_may_have_new_fields() -> None:
    def agent(name: str) -> dict[str, Any]:
        return {"name": name, "kind": "simple", "model": "m", "description": "", "tools": [], "rag_index": None, "new": 1}

    def respond(request: HttpRequest) -> HttpAnswer:
        if request.path == "/a1/agents":
            return json_answer({"agents": [agent("a")], "next_cursor": "x+/="})
        assert request.path == "/a1/agents?cursor=x%2B%2F%3D"
        return json_answer({"agents": [agent("b")], "next_cursor": None})

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        assert [one.name for one in spass.agents()] == ["a", "b"]


def test_the_list_of_tools_has_their_descriptions() -> None:
    function = {"name": "calculator", "description": "Compute.", "parameters": {"type": "object"}}
    answer = json_answer({"tools": [{"type": "function", "function": function, "category": "math"}]})
    with fake_gateway(lambda _: answer) as gateway, Spass(gateway.url) as spass:
        (tool,) = spass.tools()
    assert tool.function.description == "Compute."


def test_a_message_follows_a_compacted_session_to_its_newest_successor() -> None:
    done = {"type": "done", "session_id": "ses_3"}

    def respond(request: HttpRequest) -> HttpAnswer:
        if request.path == "/a1/agents/concise-de/sessions":
            return json_answer({"id": "ses_1"}, 201)
        number = int(request.path.split("/ses_")[1][0])
        if number < 3:
            headers = {"Location": "http://198.51.100.1/steal"}
            body = json.dumps({"successor_session_id": f"ses_{number + 1}"}).encode()
            return HttpAnswer(body, 308, headers=headers)
        return events_answer([done])

    with fake_gateway(respond) as gateway, Spass(gateway.url) as spass:
        session = spass.create_session("concise-de", title="Tennis")
        assert list(spass.send("concise-de", session["id"], "Hello")) == [done]
    assert gateway.paths[1:] == [f"POST /a1/agents/concise-de/sessions/ses_{number}/messages" for number in (1, 2, 3)]
    assert gateway.requests[0].json == {"title": "Tennis"}
    assert gateway.requests[3].json == {"message": "Hello", "stream": True}


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (json_answer({"agents": [], "next_cursor": "c"}), lambda spass: spass.agents()),
        (json_answer({"successor_session_id": "ses_1"}, 308), lambda spass: [*spass.send("a", "ses_1", "Hello")]),
        (json_answer({"successor_session_id": "ses_2"}, 308), lambda spass: [*spass.send("a", "ses_1", "Hello")]),
    ],
    ids=["a cursor that repeats", "a session that is its own successor", "successors in a circle"],
)
def test_a_server_that_leads_in_a_circle_is_an_error(answer: HttpAnswer, call: Callable[[Spass], object]) -> None:
    with fake_gateway(lambda _: answer) as gateway, Spass(gateway.url) as spass:
        with pytest.raises(SpassApiError) as raised:
            call(spass)
        assert len(gateway.requests) <= 3
    assert raised.value.code == "invalid_answer"


def test_one_name_instead_of_a_list_of_tools_is_refused() -> None:
    with Spass() as spass, pytest.raises(TypeError, match=r"tools=\['calculator'\]"):
        spass.ask("Hello", tools="calculator")
