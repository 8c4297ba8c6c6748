"""The log: one line per request, the reasons of failures, and no secrets."""

import json
from typing import Any

import pytest

from spass.aws.http_connection import Answer, NoAnswer
from spass.models.errors import AttemptFailed
from tests.functions.gateway import BUCKET, Gateway, MotoAws


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_request_writes_one_line(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    reply = gateway.send("POST", "/a1/agents/plain/sessions")
    (line,) = lines(capsys)
    assert line.pop("ms") >= 0
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "request_id": reply.headers["spass-request-id"],
        "gateway_request_id": "apigw",
        "method": "POST",
        "route": "/a1/agents/{name}/sessions",
        "status": 201,
        "tenant": "demo",
        "error": None,
    }


def test_the_line_of_a_request_names_the_limit_that_refused_it(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.set_config(monthly_budget_usd=0.000001)
    chat = {"message": "Hi"}
    assert [gateway.send("POST", "/a1/agents/plain/chat", body=chat).status for _ in range(2)] == [200, 429]
    line = lines(capsys)[-1]
    assert (line["error"], line["limit"]) == ("budget_exceeded", "monthly_budget_usd")


def test_the_log_has_no_tokens_user_texts_or_internal_names(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    private = "private-word"
    session = gateway.send("POST", "/a1/agents/plain/sessions", body={"title": private}).json["id"]
    gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": private})
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": private, private: 1})
    gateway.send("POST", "/v1/ask", body={"input": private, "context": {"memory_results": [private], "metadata": {private: 1}}})
    gateway.send("POST", "/v1/ask", body={"input": private, "agent": private, "tools": [private]})
    gateway.send("GET", f"/a1/rag/indices?cursor={private}")
    gateway.send("GET", f"/a1/rag/indices/{private}")
    gateway.send("GET", "/v1/models", token=private)
    gateway.send("POST", "/a1/agents/plain/chat", raw=f'{{"{private}'.encode())
    gateway.model.failure = AttemptFailed(private)
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": private})
    gateway.model.failure = KeyError(private)
    broken = gateway.send("POST", "/a1/agents/plain/chat", body={"message": private})
    assert (broken.status, broken.code) == (500, "internal_error")
    assert private not in broken.text
    out = capsys.readouterr().out
    for secret in (private, "demo-token", BUCKET, "Traceback", "site-packages", ".py"):
        assert secret not in out, secret
    (failure,) = (line for line in map(json.loads, out.splitlines()) if line["level"] == "error")
    assert (failure["exception"], failure["cause"]) == ("InternalError", "KeyError")
    assert failure["request_id"] == broken.headers["spass-request-id"]


@pytest.mark.moto
def test_a_refusal_of_the_storage_is_logged_with_the_request_id(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(gateway.aws, MotoAws)
    refusal = b'{"__type": "com.amazon.coral.service#AccessDeniedException", "message": "arn:aws:iam::1:role/x may not"}'
    gateway.aws.break_down(monkeypatch, Answer(400, {}, refusal), AssertionError())
    reply = gateway.send("GET", "/a1/rag/indices")
    assert reply.code == "internal_error"
    failure, request = lines(capsys)
    assert failure["request_id"] == request["request_id"] == reply.headers["spass-request-id"]
    assert failure["why"] == "The storage refused a request of ours (AccessDeniedException)."


@pytest.mark.moto
def test_the_cause_of_a_silent_storage_is_logged(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(gateway.aws, MotoAws)
    gateway.aws.break_down(monkeypatch, NoAnswer(f"https://{BUCKET}.internal"), AssertionError())
    assert gateway.send("GET", "/a1/rag/indices").code == "storage_unavailable"
    failure, _ = lines(capsys)
    assert (failure["exception"], failure["cause"]) == ("StorageUnavailable", "NoAnswer")
    assert BUCKET not in str(failure)


def test_a_failed_request_has_the_cost_of_its_earlier_calls(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "a"}]})

    async def fail() -> None:
        raise AttemptFailed("down")

    gateway.model.before_chat = fail
    reply = gateway.send("POST", "/a1/agents/reading/chat", body={"message": "a"})
    assert reply.status == 502
    assert reply.headers["spass-cost-usd"] == "0.000001"


def test_the_line_of_a_request_names_the_error_in_which_its_stream_ended(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.model.failure = AttemptFailed("down")
    reply = gateway.send(
        "POST", "/c1/agents/plain/chat", body={"message_id": "m1", "messages": [{"role": "user", "content": "Hi"}]}
    )
    (line,) = (line for line in lines(capsys) if line.get("method") == "POST")
    assert (reply.status, line["status"], line["error"]) == (200, 200, "upstream_error")
