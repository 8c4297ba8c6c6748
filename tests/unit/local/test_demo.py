"""The demo fails if an answer does not follow from the documents."""

import json
from typing import Any

import httpx
import pytest

from local.demo import isolated_environment, main
from local.demo_calls import DemoFailed, Walk
from local.processes import free_port


def walk(status: int, body: dict[str, Any]) -> Walk:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    return Walk(httpx.Client(transport=transport, base_url="http://gateway"))


def reply(content: str, *tools: str) -> dict[str, Any]:
    return {"request_id": "req_1", "message": {"content": content}, "tool_calls": [{"name": name} for name in tools]}


def test_a_right_answer_passes() -> None:
    answer = walk(200, reply("Gebaut 1791.", "rag_query")).ask("/chat", "Wann?", expect="1791", tool="rag_query")
    assert answer["request_id"] == "req_1"


@pytest.mark.parametrize(
    ("answer", "reason"), [(reply("Gebaut 1871.", "rag_query"), "1791"), (reply("Gebaut 1791."), "rag_query")]
)
def test_a_wrong_answer_or_one_without_the_tool_fails(answer: dict[str, Any], reason: str) -> None:
    with pytest.raises(DemoFailed, match=reason):
        walk(200, answer).ask("/chat", "Wann?", expect="1791", tool="rag_query")


ASKED = {"input": "What is 6 * 7?", "agent": "native_react", "tools": ["calculator"]}
DONE = {"type": "done", "request_id": "req_1", "kind": "native_react"}
EVENTS: list[dict[str, Any]] = [
    {"type": "status_update", "status": "planning"},
    {"type": "token", "content": "I calculate.", "step": 1},
    {"type": "tool_call", "tool": "calculator"},
    {"type": "token", "content": "6 * 7 ", "step": 2},
    {"type": "token", "content": "= 42", "step": 2},
    DONE,
]


def asked(content: str, *tools: str) -> dict[str, Any]:
    return {"kind": "native_react", "content": content, "tool_results": [{"tool_name": name} for name in tools]}


def stream(*events: dict[str, Any], status: int = 200) -> Walk:
    text = ": comment\n\n" + "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    return Walk(httpx.Client(transport=transport, base_url="http://gateway"))


def test_the_right_answer_of_a_kind_passes() -> None:
    walk(200, asked("6 * 7 = 42", "calculator")).ask_kind(ASKED, expect="42")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (asked("6 * 7 = 43", "calculator"), "should say '42'"),
        (asked("6 * 7 = 42"), "should call calculator; it called none"),
        (asked("6 * 7 = 42", "calculator", "rag_query"), "should call calculator; it called calculator, rag_query"),
        ({**asked("6 * 7 = 42", "calculator"), "kind": "simple"}, "kind should be native_react; it is simple"),
    ],
)
def test_a_wrong_answer_or_tool_of_a_kind_fails(answer: dict[str, Any], reason: str) -> None:
    with pytest.raises(DemoFailed, match=reason):
        walk(200, answer).ask_kind(ASKED, expect="42")


def test_the_tokens_of_the_last_step_of_a_stream_are_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    stream(*EVENTS).stream_kind(ASKED, expect="42")
    assert "» 6 * 7 = 42\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "begin with planning and end with done; it had 0 events"),
        (EVENTS[1:], "begin with planning"),
        (EVENTS[:-1], "end with done"),
        ([*EVENTS[:3], DONE], "should say '42': I calculate"),
        ([EVENTS[0], DONE], "should say '42'"),
        ([*EVENTS[:-1], {**DONE, "kind": "simple"}], "kind should be native_react; it is simple"),
        ([*EVENTS[:2], *EVENTS[3:]], "should call calculator; it called none"),
    ],
)
def test_a_wrong_stream_fails(events: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(DemoFailed, match=reason):
        stream(*events).stream_kind(ASKED, expect="42")


def test_a_refused_call_or_stream_fails() -> None:
    with pytest.raises(DemoFailed, match="503"):
        walk(503, {"error": {}}).call("GET", "/a1/agents")
    with pytest.raises(DemoFailed, match="answered with 403"):
        stream(status=403).stream_kind(ASKED, expect="42")


def test_a_redirected_call_prints_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/old":
            return httpx.Response(308, headers={"Location": "/new"})
        return httpx.Response(200, json={"sent": request.content.decode()})

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://gateway")
    assert Walk(client).call("POST", "/old", {"message": "Hello"}) == {"sent": '{"message":"Hello"}'}
    assert "← 308\n→ POST /new\n← 200" in capsys.readouterr().out


def test_a_terminal_gets_no_control_characters_of_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    walk(200, reply("6 * 7 = \x1b]0;title\x0742\x9b2J")).ask("/chat", "?", expect="42")
    shown = capsys.readouterr().out
    assert "» 6 * 7 = ]0;title422J\n" in shown
    assert "\x1b" not in shown


def test_the_demo_waits_for_a_compaction_that_is_still_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    statuses = iter(["queued", "running", "succeeded"])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/session/compact":
            return httpx.Response(202, json={"job_id": "job_1", "status": "queued"})
        assert request.url.path == "/a1/jobs/job_1"
        return httpx.Response(200, json={"status": next(statuses), "result": {"summary_id": "sum_1"}})

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://gateway")
    assert Walk(client).compact("/session") == {"summary_id": "sum_1"}


def test_a_failed_compaction_fails_the_demo() -> None:
    with pytest.raises(DemoFailed, match="not compacted"):
        walk(200, {"job_id": "job_1", "status": "failed"}).compact("/session")


def test_the_temporary_gateway_gets_no_keys_and_no_other_stores() -> None:
    operators = {"OPENAI_API_KEY": "sk-1", "MY_APIKEY": "2", "AWS_ENDPOINT_URL": "http://stack", "SPASS_CONFIG": "mine.yaml"}
    environment = isolated_environment({**operators, "SPASS_HOME": "mine", "PATH": "/bin"}, "temporary")
    assert environment == {"SPASS_HOME": "temporary", "PATH": "/bin"}


def test_a_missing_gateway_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr("sys.argv", ["demo", "--url", url])
    assert main() == 1
    assert f"No gateway answers at {url}. Start one with `make run`." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("health", "is_gateway"),
    [({"status": "ok", "release": "56191eaf"}, True), ({"status": "starting"}, False), ({"state": "ok"}, False), (["ok"], False)],
)
def test_the_demo_uses_only_a_server_that_is_a_gateway(
    monkeypatch: pytest.MonkeyPatch, health: dict[str, str] | list[str], is_gateway: bool
) -> None:
    walked: list[object] = []
    monkeypatch.setattr("sys.argv", ["demo", "--url", "http://gateway"])
    monkeypatch.setattr("httpx.get", lambda *_, **__: httpx.Response(200, json=health))
    monkeypatch.setattr("local.demo.walk", walked.append)
    assert main() == int(not is_gateway)
    assert len(walked) == is_gateway
