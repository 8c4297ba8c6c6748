"""The bus of the whole gateway: what is published, that no event has a text, and that subscribers disturb nothing."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pytest

from spass.core.bus import INFERENCE_END, TOOL_CALL_END
from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import AttemptFailed
from spass.models.types import ChatDelta
from spass.testing.event_log import EventLog
from spass.testing.model import Answer, calls, in_turn
from tests.functions.compaction_harness import CompactionHarness
from tests.functions.gateway import Gateway

SECRET: Final = "planted-word-7391"
LINES: Final = frozenset({"agent_turn_end", "tool_call_end", "inference_end", "trace", "subscriber_failed"})
USAGE: Final = TokenUsage(10, 5)


@pytest.fixture
def log(gateway: Gateway) -> EventLog:
    """All events of the gateway, whose telemetry and metrics are on."""
    gateway.services.settings = replace(gateway.services.settings, metrics_namespace="Spass/test")
    return EventLog(gateway.services.bus)


def say(text: str) -> Sequence[ChatDelta]:
    return [ChatDelta(text), ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE)]


def telemetry(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the lines of telemetry and traces."""
    return [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line.get("event") in LINES]


def chat(gateway: Gateway, message: str = "Hi", agent: str = "counting") -> int:
    return gateway.send("POST", f"/a1/agents/{agent}/chat", body={"message": message}).status


CALLS: Final = ["inference_start", "inference_end", "tool_call_start", "tool_call_end", "inference_start", "inference_end"]


def test_a_turn_of_an_agent_is_traced_with_its_calls(gateway: Gateway, log: EventLog, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.model.script = in_turn([calls(("calculator", '{"expression": "6*7"}')), say("It is 42.")])
    assert chat(gateway) == 200
    log.check()
    assert log.names == ["agent_turn_start", *CALLS, "agent_turn_end"]
    (trace,) = [line for line in telemetry(capsys) if line["event"] == "trace"]
    assert (
        trace.items()
        >= {"agent": "counting", "kind": "orchestrator", "turns": 2, "tool_calls": 1, "finish_reason": "stop"}.items()
    )
    assert [span["type"] for span in trace["spans"]] == ["inference", "tool_call", "inference"]
    assert sum(span.get("cost_usd", 0) for span in trace["spans"]) == trace["cost_usd"]


def test_a_chat_completion_publishes_its_calls_and_no_turn(gateway: Gateway, log: EventLog) -> None:
    gateway.model.script = in_turn([calls(("calculator", '{"expression": "6*7"}')), say("It is 42.")])
    gateway.set_config(tools_enabled_default=["calculator"])
    body = {"model": "small", "messages": [{"role": "user", "content": "6 * 7?"}]}
    assert gateway.send("POST", "/v1/chat/completions", body=body).status == 200
    log.check()
    assert log.names == CALLS


def test_telemetry_has_the_costs_and_the_metrics_of_model_calls(
    gateway: Gateway, log: EventLog, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.model.script = in_turn([calls(("calculator", '{"expression": "6*7"}')), say("It is 42.")])
    assert chat(gateway) == 200
    ends = log.of(INFERENCE_END)
    assert [(end.model, end.status, end.agent) for end in ends] == [("small", "ok", "counting")] * 2
    assert [(end.tool, end.ok) for end in log.of(TOOL_CALL_END)] == [("calculator", True)]
    lines = [line for line in telemetry(capsys) if line["event"] == "inference_end"]
    assert [line["cost_usd"] for line in lines] == [float(end.cost_usd) for end in ends]
    assert all(line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Spass/test" for line in lines)


def test_the_sums_of_the_events_are_those_of_the_audit(gateway: Gateway, log: EventLog) -> None:
    answers: list[Answer] = [
        calls(("calculator", '{"expression": "6*7"}'), ("rag_query", "{}")),
        say("It is 42."),
        AttemptFailed("x"),
    ]
    gateway.model.script = in_turn(answers)
    assert [chat(gateway), chat(gateway)] == [200, 502]
    body = {"model": "mini-embed", "input": ["one", "two"]}
    assert gateway.send("POST", "/v1/embeddings", body=body).status == 200
    log.check()
    ends = log.of(INFERENCE_END)
    total = gateway.send("GET", "/v1/usage", token="demo-admin-token").json["total"]
    assert total["prompt_tokens"] == sum(end.prompt_tokens for end in ends) == 22
    assert total["completion_tokens"] == sum(end.completion_tokens for end in ends) == 10
    assert Decimal(total["cost_usd"]) == sum(end.cost_usd for end in ends) > 0


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/chat/completions", {"model": "small", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/a1/agents/counting/chat", {"message": "Hi"}),
        ("/a1/agents/counting/chat", {"message": "Hi", "stream": True}),
        ("/a1/agents/counting/sessions/SESSION/messages", {"message": "Hi"}),
        ("/a1/agents/counting/sessions/SESSION/messages", {"message": "Hi", "stream": True}),
        ("/v1/ask", {"input": "Hi", "agent": "simple"}),
        ("/v1/ask", {"input": "Hi", "agent": "react", "stream": True}),
    ],
)
def test_the_work_of_a_client_that_left_has_its_ends(gateway: Gateway, log: EventLog, target: str, body: Any) -> None:
    session = gateway.send("POST", "/a1/agents/counting/sessions", token="demo-admin-token").json["id"]
    asked = asyncio.Event()

    async def answer_later() -> None:
        asked.set()
        await asyncio.sleep(0.05)

    gateway.model.before_chat = answer_later
    gateway.leave(target.replace("SESSION", session), {}, body, when=asked)
    log.check()
    assert log.names.count("inference_end") == 1
    assert ("agent_turn_end" in log.names) == (target != "/v1/chat/completions")


def test_telemetry_is_off_by_default(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(gateway) == 200
    assert telemetry(capsys) == []


def test_a_failing_subscriber_is_one_line_and_the_answer_is_unharmed(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ValueError(SECRET)

    gateway.services.bus.subscribe(INFERENCE_END, fail)
    log = EventLog(gateway.services.bus)
    assert chat(gateway) == 200
    log.check()
    (line,) = telemetry(capsys)
    assert (line["event"], line["subscribed_to"], line["exception"]) == ("subscriber_failed", "inference_end", "ValueError")
    assert SECRET not in json.dumps(line)


def test_the_steps_of_a_compaction_publish_on_the_same_bus(harness: CompactionHarness) -> None:
    session = harness.session()
    log = EventLog(harness.gateway.services.bus)
    harness.compact_to_successor(session)
    log.check()
    assert [(end.status, end.agent, end.session_id) for end in log.of(INFERENCE_END)] == [("ok", "plain", session)]


def _fill(gateway: Gateway, work: Callable[[], Any], *answers: Answer) -> None:
    gateway.model.script = in_turn(answers)
    work()


def test_a_planted_secret_is_in_no_event_and_in_no_line(
    gateway: Gateway, log: EventLog, capsys: pytest.CaptureFixture[str]
) -> None:
    send, body = gateway.send, {"message": SECRET}
    documents = {"documents": [{"id": SECRET, "text": SECRET, "metadata": {SECRET: SECRET}}]}
    assert send("POST", "/a1/rag/indices/notes/documents", body=documents).status == 200
    arguments = f'{{"expression": "{SECRET}"}}'
    found = '{"index_id": "notes", "query": "' + SECRET + '"}'
    made = calls((SECRET, arguments), ("calculator", arguments), ("rag_query", found), ("calculator", SECRET))

    def ask(path: str = "/a1/agents/counting/chat", **request: Any) -> None:
        send("POST", path, body=body | request, user=SECRET)

    def take_turn() -> None:
        session = send("POST", "/a1/agents/counting/sessions", body={"title": SECRET}, user=SECRET).json["id"]
        ask(f"/a1/agents/counting/sessions/{session}/messages")

    completion = {"model": "small", "user": SECRET, "messages": [{"role": "user", "content": SECRET}]}
    failures = [AttemptFailed(SECRET), KeyError(SECRET)]
    for work in (ask, take_turn, lambda: send("POST", "/v1/chat/completions", body=completion)):
        _fill(gateway, work, made, say(SECRET))
        for failure in failures:
            _fill(gateway, work, failure)
    for name in ("calculator", "rag_query", SECRET):
        send(
            "POST",
            "/v1/tools/execute",
            body={"name": name, "arguments": {"expression": SECRET, "index_id": "notes", "query": SECRET}},
        )
    send("POST", "/v1/embeddings", body={"model": "mini-embed", "input": SECRET, "user": SECRET})
    send("POST", "/v1/embeddings", body={"model": SECRET, "input": SECRET})
    send("POST", f"/a1/agents/{SECRET}/chat", body=body)
    log.check()
    assert {"inference_end", "tool_call_end"} <= set(log.names)
    assert SECRET not in repr(log.events)
    lines = telemetry(capsys)
    assert {line["event"] for line in lines} == {"inference_end", "tool_call_end", "agent_turn_end", "trace"}
    assert SECRET not in json.dumps(lines)
