"""Idempotency keys: on every POST route, the same key with the same body is carried out once."""

import asyncio
from typing import Any

import pytest

from spass.aws.keys import Key
from spass.aws.leases import renewing
from spass.aws.writes import Update
from spass.core.ids import TenantId
from spass.llm.errors import BackendError
from spass.web import idempotency as web
from tests.functions.gateway import Gateway, Reply

KEY = {"Idempotency-Key": "key-1"}
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}]}

UPLOAD = {"filename": "notes.md", "content_type": "text/markdown", "size": 10}


def routes(gateway: Gateway) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the path, a body and another body for each POST route."""
    gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS)
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    return {
        "chat": ("/a1/agents/plain/chat", {"message": "one"}, {"message": "two"}),
        "create": ("/a1/agents/plain/sessions", {"title": "one"}, {"title": "two"}),
        "append": (f"/a1/agents/plain/sessions/{session}/messages", {"message": "one"}, {"message": "two"}),
        "replace": ("/a1/rag/indices/books/documents", DOCUMENTS, {"documents": [{"id": "b", "text": "b"}]}),
        "extend": ("/a1/rag/indices/books/documents/append", DOCUMENTS, {"documents": [{"id": "b", "text": "b"}]}),
        "query": ("/a1/rag/indices/notes/query", {"query": "alpha"}, {"query": "beta"}),
        "upload": ("/a1/rag/indices/notes/uploads", UPLOAD, UPLOAD | {"size": 11}),
        "execute": (
            "/v1/tools/execute",
            {"name": "calculator", "arguments": {"expression": "1+1"}},
            {"name": "calculator", "arguments": {"expression": "2+2"}},
        ),
        "completion": (
            "/v1/chat/completions",
            {"model": "small", "messages": [{"role": "user", "content": "one"}]},
            {"model": "small", "messages": [{"role": "user", "content": "two"}]},
        ),
        "embedding": (
            "/v1/embeddings",
            {"model": "mini-embed", "input": "one"},
            {"model": "mini-embed", "input": "two"},
        ),
    }


ALL = ["chat", "create", "append", "replace", "extend", "query", "upload", "execute", "completion", "embedding"]
MODEL_CALLERS = [name for name in ALL if name not in {"create", "upload", "execute"}]


def send(gateway: Gateway, path: str, body: dict[str, Any], **more: Any) -> Reply:
    return gateway.send("POST", path, body=body, headers=KEY, token="demo-admin-token", **more)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ALL])
def test_a_repeated_request_gets_the_stored_answer(gateway: Gateway, name: str) -> None:
    path, body, other = routes(gateway)[name]
    first = send(gateway, path, body)
    assert first.status in {200, 201}, first.text
    assert "idempotency-replayed" not in first.headers
    stored, requests, embedded = gateway.stored(), len(gateway.model.requests), len(gateway.model.embedded)
    second = send(gateway, path, body)
    assert (second.status, second.json) == (first.status, first.json)
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["spass-request-id"] != first.headers["spass-request-id"]
    for header in ("spass-cost-usd", "spass-cost-eur", "spass-cost-source", "spass-cost-sub-calls"):
        assert second.headers.get(header) == first.headers.get(header), header
    assert (gateway.stored(), len(gateway.model.requests), len(gateway.model.embedded)) == (stored, requests, embedded)
    assert send(gateway, path, other).code == "idempotency_key_reused"
    assert gateway.stored() == stored


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ALL])
def test_the_same_key_of_another_user_or_token_is_another_request(gateway: Gateway, name: str) -> None:
    path, body, _ = routes(gateway)[name]
    send(gateway, path, body)
    if name != "append":
        for user, token in (("bob", "demo-admin-token"), ("ada", "demo-token")):
            if path.startswith("/v1/") and (user == "bob" or name == "embedding"):
                continue
            reply = gateway.send("POST", path, body=body, headers=KEY, user=user, token=token)
            assert reply.status in {200, 201}, reply.text
            assert "idempotency-replayed" not in reply.headers


@pytest.mark.parametrize("name", MODEL_CALLERS)
def test_a_failure_is_not_stored(gateway: Gateway, name: str) -> None:
    path, body, _ = routes(gateway)[name]
    gateway.model.failure = BackendError("down")
    assert send(gateway, path, body).status >= 500
    gateway.model.failure = None
    second = send(gateway, path, body)
    assert second.status in {200, 201}, second.text
    assert "idempotency-replayed" not in second.headers


def test_a_failed_tool_call_may_be_repeated_with_its_key(gateway: Gateway) -> None:
    call = {"name": "rag_query", "arguments": {"index_id": "notes", "query": "alpha"}}
    assert send(gateway, "/v1/tools/execute", call).json["result"]["error"]["code"] == "index_not_found"
    gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS)
    gateway.model.failure = BackendError("down")
    assert send(gateway, "/v1/tools/execute", call).code == "upstream_error"
    gateway.model.failure = None
    reply = send(gateway, "/v1/tools/execute", call)
    assert (reply.status, [hit["id"] for hit in reply.json["result"]["results"]]) == (200, ["a"])
    assert send(gateway, "/v1/tools/execute", call).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("name", ["chat", "append", "completion", "a stream"])
def test_a_repeated_request_is_refused_while_the_first_runs(gateway: Gateway, name: str) -> None:
    path, body, other = routes(gateway)["completion" if name == "a stream" else name]
    if name == "a stream":
        body, other = body | {"stream": True}, other | {"stream": True}
    replies: list[Reply] = []

    async def second() -> None:
        gateway.model.before = None
        replies.append(await gateway.post_meanwhile(path, KEY, body))
        replies.append(await gateway.post_meanwhile(path, KEY, other))
        replies.append(await gateway.post_meanwhile(path, {"Idempotency-Key": "another"}, body))

    gateway.model.before = second
    first = send(gateway, path, body)
    assert first.status == 200, first.text
    same, reused, another = replies
    assert (same.status, same.code) == (409, "idempotency_in_progress")
    assert 1 <= int(same.headers["retry-after"]) <= 2, "a live owner ends long before its lease"
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    assert another.code == ("session_busy" if name == "append" else None)
    if name == "append":
        assert int(another.headers["retry-after"]) <= 2


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_work_stops_when_another_request_owns_its_key(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "renewing", lambda renew: renewing(renew, every=0.05))
    path, body, _ = routes(gateway)[name]
    continued: list[str] = []

    async def lose_the_key() -> None:
        for item in gateway.items():
            if item.get("state") == "running":
                table = gateway.aws.for_tenant(TenantId("demo")).table
                await table.write(Update(Key(item["pk"], item["sk"]), set={"owner": "another request"}))
        await asyncio.sleep(0.5)
        continued.append(name)

    gateway.model.before = lose_the_key
    reply = send(gateway, path, body)
    assert (reply.status, reply.code) == (503, "storage_unavailable")
    assert "retry-after" in reply.headers
    gateway.wait(1)
    assert continued == []
    assert send(gateway, path, body).code == "idempotency_in_progress", "the claim of the other request has changed"
