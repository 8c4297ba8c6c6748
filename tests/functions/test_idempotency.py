"""Idempotency keys: on every POST route, a repeated request with the same key and body is not executed again."""

import asyncio
from typing import Any

import pytest

from spass.core.ids import TenantId
from spass.models.errors import AttemptFailed
from spass.store import idempotency
from spass.store.keys import Key
from spass.store.leases import renewing
from spass.store.writes import Update
from tests.functions.gateway import Gateway, Reply

KEY = {"Idempotency-Key": "key-1"}
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}]}

UPLOAD = {"filename": "notes.md", "content_type": "text/markdown", "size": 10}


def post_routes(gateway: Gateway) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the path, a valid body and a different valid body of each POST route, by name."""
    gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS)
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    return {
        "chat": ("/a1/agents/plain/chat", {"message": "one"}, {"message": "two"}),
        "ask": ("/v1/ask", {"input": "one", "agent": "react"}, {"input": "two", "agent": "react"}),
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
        "agent": (
            "/v1/chat/completions",
            {"model": "agent/counting", "messages": [{"role": "user", "content": "one"}]},
            {"model": "agent/counting", "messages": [{"role": "user", "content": "two"}]},
        ),
        "embedding": (
            "/v1/embeddings",
            {"model": "mini-embed", "input": "one"},
            {"model": "mini-embed", "input": "two"},
        ),
    }


ROUTE_NAMES = [
    *("chat", "ask", "create", "append", "replace", "extend", "query", "upload", "execute", "completion", "agent", "embedding"),
]
MODEL_ROUTE_NAMES = [name for name in ROUTE_NAMES if name not in {"create", "upload", "execute"}]


def send(gateway: Gateway, path: str, body: dict[str, Any]) -> Reply:
    return gateway.send("POST", path, body=body, headers=KEY, token="demo-admin-token")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ROUTE_NAMES]
)
def test_a_repeated_request_gets_the_stored_answer(gateway: Gateway, name: str) -> None:
    path, body, other_body = post_routes(gateway)[name]
    first = send(gateway, path, body)
    assert first.status in {200, 201}, first.text
    assert "idempotency-replayed" not in first.headers
    items_and_objects, chats, embeddings = gateway.stored(), len(gateway.model.requests), len(gateway.model.embeddings)
    second = send(gateway, path, body)
    assert (second.status, second.json) == (first.status, first.json)
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["spass-request-id"] != first.headers["spass-request-id"]
    for header in ("spass-cost-usd", "spass-cost-eur", "spass-cost-source", "spass-cost-sub-calls"):
        assert second.headers.get(header) == first.headers.get(header), header
    assert (gateway.stored(), len(gateway.model.requests), len(gateway.model.embeddings)) == (
        items_and_objects,
        chats,
        embeddings,
    )
    assert send(gateway, path, other_body).code == "idempotency_key_reused"
    assert gateway.stored() == items_and_objects


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ROUTE_NAMES]
)
def test_the_same_key_of_another_user_or_token_is_another_request(gateway: Gateway, name: str) -> None:
    path, body, _ = post_routes(gateway)[name]
    send(gateway, path, body)
    callers = [("ada", "demo-token")]
    if path.startswith("/a1/") and name != "append":  # /v1 routes have no user, and Bob cannot append to Ada's session
        callers.append(("bob", "demo-admin-token"))
    for user, token in callers:
        reply = gateway.send("POST", path, body=body, headers=KEY, user=user, token=token)
        assert reply.status in {200, 201}, reply.text
        assert "idempotency-replayed" not in reply.headers


@pytest.mark.parametrize("name", MODEL_ROUTE_NAMES)
def test_a_failure_is_not_stored(gateway: Gateway, name: str) -> None:
    path, body, _ = post_routes(gateway)[name]
    gateway.model.failure = AttemptFailed("down")
    assert send(gateway, path, body).status >= 500
    gateway.model.failure = None
    second = send(gateway, path, body)
    assert second.status in {200, 201}, second.text
    assert "idempotency-replayed" not in second.headers


def test_a_failed_tool_call_may_be_repeated_with_its_key(gateway: Gateway) -> None:
    call = {"name": "rag_query", "arguments": {"index_id": "notes", "query": "alpha"}}
    assert send(gateway, "/v1/tools/execute", call).json["result"]["error"]["code"] == "index_not_found"
    gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS)
    gateway.model.failure = AttemptFailed("down")
    assert send(gateway, "/v1/tools/execute", call).code == "upstream_error"
    gateway.model.failure = None
    reply = send(gateway, "/v1/tools/execute", call)
    assert (reply.status, [hit["id"] for hit in reply.json["result"]["results"]]) == (200, ["a"])
    assert send(gateway, "/v1/tools/execute", call).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("name", ["chat", "append", "completion", "agent", "a stream"])
def test_a_repeated_request_is_refused_while_the_first_runs(gateway: Gateway, name: str) -> None:
    path, body, other_body = post_routes(gateway)["completion" if name == "a stream" else name]
    if name == "a stream":
        body, other_body = body | {"stream": True}, other_body | {"stream": True}
    replies: list[Reply] = []

    async def send_requests() -> None:
        gateway.model.before_chat = None
        replies.append(await gateway.post_async(path, KEY, body))
        replies.append(await gateway.post_async(path, KEY, other_body))
        replies.append(await gateway.post_async(path, {"Idempotency-Key": "another"}, body))

    gateway.model.before_chat = send_requests
    first = send(gateway, path, body)
    assert first.status == 200, first.text
    same, reused, another = replies
    assert (same.status, same.code) == (409, "idempotency_in_progress")
    assert 1 <= int(same.headers["retry-after"]) <= 2, "the client waits for the request, not for its lease to expire"
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    assert another.code == ("session_busy" if name == "append" else None)
    if name == "append":
        assert int(another.headers["retry-after"]) <= 2


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_a_request_stops_when_another_request_takes_its_key(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "renewing", lambda renew: renewing(renew, every=0.05))
    path, body, _ = post_routes(gateway)[name]
    finished_calls: list[str] = []

    async def lose_the_key() -> None:
        for item in gateway.items():
            if item.get("state") == "running":
                table = gateway.aws.for_tenant(TenantId("demo")).table
                await table.write(Update(Key(item["pk"], item["sk"]), set={"owner": "another request"}))
        await asyncio.sleep(0.5)
        finished_calls.append(name)

    gateway.model.before_chat = lose_the_key
    reply = send(gateway, path, body)
    assert (reply.status, reply.code) == (503, "storage_unavailable")
    assert "retry-after" in reply.headers
    gateway.wait(1)
    assert finished_calls == []
    assert send(gateway, path, body).code == "idempotency_in_progress", "the other request must keep its claim"
