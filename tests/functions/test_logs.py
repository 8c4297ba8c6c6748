"""What the log says, and what it never says."""

import json
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, ReadTimeoutError

from spass.llm.errors import BackendError
from tests.functions.gateway import BUCKET, Gateway

pytestmark = pytest.mark.moto


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_request_leaves_one_line(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_no_line_holds_a_token_a_word_of_a_user_or_a_name_of_ours(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    said = "private-word"
    session = gateway.send("POST", "/a1/agents/plain/sessions", body={"title": said}).json["id"]
    gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": said})
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": said, said: 1})
    gateway.send("GET", f"/a1/rag/indices?cursor={said}")
    gateway.send("GET", f"/a1/rag/indices/{said}")
    gateway.send("GET", "/v1/models", token=said)
    gateway.send("POST", "/a1/agents/plain/chat", raw=f'{{"{said}'.encode())
    gateway.model.failure = BackendError(said)
    gateway.send("POST", "/a1/agents/plain/chat", body={"message": said})
    gateway.model.failure = KeyError(said)
    broken = gateway.send("POST", "/a1/agents/plain/chat", body={"message": said})
    assert (broken.status, broken.code) == (500, "internal_error")
    assert said not in broken.text
    out = capsys.readouterr().out
    for secret in (said, "demo-token", BUCKET, "Traceback", "site-packages", ".py"):
        assert secret not in out, secret
    (failure,) = (line for line in map(json.loads, out.splitlines()) if line["level"] == "error")
    assert failure["exception"] == "KeyError"
    assert failure["request_id"] == broken.headers["spass-request-id"]


def test_what_the_storage_refuses_for_good_is_in_the_log_under_the_request(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "arn:aws:iam::1:role/x may not"}}, "GetItem")

    monkeypatch.setattr(BaseClient, "_make_api_call", refuses)
    reply = gateway.send("GET", "/a1/rag/indices")
    assert reply.code == "internal_error"
    failure, request = lines(capsys)
    assert failure["request_id"] == request["request_id"] == reply.headers["spass-request-id"]
    assert failure["why"] == "The storage refused a request of ours (AccessDeniedException)."


def test_why_the_storage_did_not_answer_is_in_the_log_too(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_late(*_: object) -> None:
        raise ReadTimeoutError(endpoint_url=f"https://{BUCKET}.internal")

    monkeypatch.setattr(BaseClient, "_make_api_call", is_late)
    assert gateway.send("GET", "/a1/rag/indices").code == "storage_unavailable"
    failure, _ = lines(capsys)
    assert (failure["exception"], failure["cause"]) == ("StorageUnavailable", "ReadTimeoutError")
    assert BUCKET not in str(failure)


def test_costs_are_said_even_if_the_request_failed_after_them(gateway: Gateway) -> None:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "a"}]})

    async def fails() -> None:
        raise BackendError("down")

    gateway.model.before = fails
    reply = gateway.send("POST", "/a1/agents/reading/chat", body={"message": "a"})
    assert reply.status == 502
    assert reply.headers["spass-cost-usd"] == "0.000001"
