"""The same key with the same body is one request, on every route that changes something or calls a model."""

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
    """Every POST: where, what, and what else."""
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
CALLING = [name for name in ALL if name not in {"create", "upload", "execute"}]


def send(gateway: Gateway, path: str, body: dict[str, Any], **more: Any) -> Reply:
    return gateway.send("POST", path, body=body, headers=KEY, token="demo-admin-token", **more)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ALL])
def test_the_second_time_is_the_first_answer_again_and_nothing_is_done(gateway: Gateway, name: str) -> None:
    path, body, other = routes(gateway)[name]
    first = send(gateway, path, body)
    assert first.status in {200, 201}, first.text
    assert "idempotency-replayed" not in first.headers
    after, asked, embedded = gateway.stored(), len(gateway.model.requests), len(gateway.model.embedded)
    second = send(gateway, path, body)
    assert (second.status, second.json) == (first.status, first.json)
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["spass-request-id"] != first.headers["spass-request-id"]
    for header in ("spass-cost-usd", "spass-cost-eur", "spass-cost-source", "spass-cost-sub-calls"):
        assert second.headers.get(header) == first.headers.get(header), header
    assert (gateway.stored(), len(gateway.model.requests), len(gateway.model.embedded)) == (after, asked, embedded)
    assert send(gateway, path, other).code == "idempotency_key_reused"
    assert gateway.stored() == after


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.moto) if name == "upload" else name for name in ALL])
def test_a_key_means_nothing_to_anybody_else(gateway: Gateway, name: str) -> None:
    path, body, _ = routes(gateway)[name]
    send(gateway, path, body)
    if name != "append":
        for user, token in (("bob", "demo-admin-token"), ("ada", "demo-token")):
            if path.startswith("/v1/") and (user == "bob" or name == "embedding"):
                continue
            reply = gateway.send("POST", path, body=body, headers=KEY, user=user, token=token)
            assert reply.status in {200, 201}, reply.text
            assert "idempotency-replayed" not in reply.headers


@pytest.mark.parametrize("name", CALLING)
def test_a_failure_is_not_kept(gateway: Gateway, name: str) -> None:
    path, body, _ = routes(gateway)[name]
    gateway.model.failure = BackendError("down")
    assert send(gateway, path, body).status >= 500
    gateway.model.failure = None
    again = send(gateway, path, body)
    assert again.status in {200, 201}, again.text
    assert "idempotency-replayed" not in again.headers


def test_a_tool_that_failed_is_tried_again(gateway: Gateway) -> None:
    call = {"name": "rag_query", "arguments": {"index_id": "notes", "query": "alpha"}}
    assert send(gateway, "/v1/tools/execute", call).json["result"]["error"]["code"] == "index_not_found"
    gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS)
    gateway.model.failure = BackendError("down")
    assert send(gateway, "/v1/tools/execute", call).code == "upstream_error"
    gateway.model.failure = None
    found = send(gateway, "/v1/tools/execute", call)
    assert (found.status, [hit["id"] for hit in found.json["result"]["results"]]) == (200, ["a"])
    assert send(gateway, "/v1/tools/execute", call).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("name", ["chat", "append", "completion", "a stream"])
def test_while_the_first_runs_the_second_is_told_to_come_back(gateway: Gateway, name: str) -> None:
    path, body, other = routes(gateway)["completion" if name == "a stream" else name]
    if name == "a stream":
        body, other = body | {"stream": True}, other | {"stream": True}
    meanwhile: list[Reply] = []

    async def second() -> None:
        gateway.model.before = None
        meanwhile.append(await gateway.post_meanwhile(path, KEY, body))
        meanwhile.append(await gateway.post_meanwhile(path, KEY, other))
        meanwhile.append(await gateway.post_meanwhile(path, {"Idempotency-Key": "another"}, body))

    gateway.model.before = second
    first = send(gateway, path, body)
    assert first.status == 200, first.text
    same, reused, another = meanwhile
    assert (same.status, same.code) == (409, "idempotency_in_progress")
    assert 1 <= int(same.headers["retry-after"]) <= 2, "an owner that lives is done long before its lease is"
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    assert another.code == ("session_busy" if name == "append" else None)
    if name == "append":
        assert int(another.headers["retry-after"]) <= 2


@pytest.mark.parametrize("name", ["chat", "completion"])
def test_work_whose_key_was_lost_to_another_try_stops(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "renewing", lambda renew: renewing(renew, every=0.05))
    path, body, _ = routes(gateway)[name]
    went_on: list[str] = []

    async def lose_the_key() -> None:
        for item in gateway.items():
            if item.get("state") == "running":
                table = gateway.aws.for_tenant(TenantId("demo")).table
                await table.write(Update(Key(item["pk"], item["sk"]), set={"owner": "another try"}))
        await asyncio.sleep(0.5)
        went_on.append(name)

    gateway.model.before = lose_the_key
    reply = send(gateway, path, body)
    assert (reply.status, reply.code) == (503, "storage_unavailable")
    assert "retry-after" in reply.headers
    gateway.wait(1)
    assert went_on == []
    assert send(gateway, path, body).code == "idempotency_in_progress", "the other try's place is untouched"
