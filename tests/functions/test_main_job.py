"""The normal use of every route: agents, sessions, indices, tools and embeddings."""

from pathlib import Path
from typing import Any

import pytest

from tests.functions.gateway import STAGE, Gateway, Reply

SESSIONS = "/a1/agents/plain/sessions"
NOTES = "/a1/rag/indices/notes"
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta", "metadata": {"n": 1}}]}


def ok(reply: Reply, status: int = 200) -> Any:
    assert reply.status == status, reply.text
    assert reply.headers["spass-request-id"].startswith("req_")
    return reply.json


def test_the_health_route_needs_no_token_and_names_the_release(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPASS_RELEASE", raising=False)
    assert ok(gateway.send("GET", "/healthz", token=None)) == {"status": "ok", "release": "unknown"}
    monkeypatch.setenv("SPASS_RELEASE", "56191eaf")
    assert ok(gateway.send("GET", "/healthz", token=None)) == {"status": "ok", "release": "56191eaf"}


def test_agents_are_sorted_by_name_and_paged(gateway: Gateway) -> None:
    full_list = ok(gateway.send("GET", "/a1/agents"))
    names = [agent["name"] for agent in full_list["agents"]]
    assert names == sorted(names)
    assert full_list["next_cursor"] is None
    paged_names, path = [], "/a1/agents?limit=1"
    while path:
        page = ok(gateway.send("GET", path))
        paged_names += [agent["name"] for agent in page["agents"]]
        path = f"/a1/agents?limit=1&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert paged_names == names
    assert gateway.send("GET", "/a1/agents?limit=0").code == "invalid_request"


def test_the_list_has_summaries_and_an_agent_has_all_fields(gateway: Gateway) -> None:
    entries = ok(gateway.send("GET", "/a1/agents"))["agents"]
    assert [agent["name"] for agent in entries] == ["costly", "counting", "plain", "reading"]
    assert set(entries[0]) == {"name", "description", "model", "kind", "tools", "rag_index", "usable", "unusable_reason"}
    assert ok(gateway.send("GET", "/a1/agents/plain"))["max_turns"] == 10
    assert gateway.send("GET", "/a1/agents/nobody").code == "agent_not_found"


def test_a_chat_with_an_agent_has_an_answer_and_its_cost(gateway: Gateway) -> None:
    reply = gateway.send("POST", "/a1/agents/plain/chat", body={"message": "Hello?"})
    body = ok(reply)
    assert body["message"]["content"] == "Hello there."
    assert (body["session_id"], body["message"]["id"], body["message"]["seq"]) == (None, None, None)
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert reply.headers["spass-cost-usd"] == "0.00002"
    assert reply.headers["spass-cost-eur"] == "0.00001"
    assert reply.headers["spass-cost-source"] == "catalog"
    assert reply.headers["spass-cost-sub-calls"] == "1"
    assert body["request_id"] == reply.headers["spass-request-id"]


def test_an_agent_with_a_model_that_is_not_allowed_is_refused_first(gateway: Gateway) -> None:
    assert gateway.send("POST", "/a1/agents/costly/chat", body={"message": "x"}).code == "model_not_allowed"
    assert gateway.stored() == {}
    assert gateway.model.requests == []


def test_a_session_sends_its_history_to_the_model(gateway: Gateway) -> None:
    created = ok(gateway.send("POST", SESSIONS, body={"title": "T"}), 201)
    at = f"{SESSIONS}/{created['id']}"
    first = ok(gateway.send("POST", f"{at}/messages", body={"message": "one"}))
    second = ok(gateway.send("POST", f"{at}/messages", body={"message": "two"}))
    assert (first["message"]["seq"], second["message"]["seq"]) == (2, 4)
    assert second["session_id"] == created["id"]
    contents = [message.content for message in gateway.model.requests[-1].messages]
    assert contents == ["Answer.", "one", "Hello there.", "two"]
    history = ok(gateway.send("GET", f"{at}/messages"))
    assert [message["seq"] for message in history["messages"]] == [1, 2, 3, 4]
    assert history["messages"][3]["id"] == second["message"]["id"]
    assert ok(gateway.send("GET", at))["message_count"] == 4
    entries = ok(gateway.send("GET", SESSIONS))
    assert [session["id"] for session in entries["sessions"]] == [created["id"]]
    assert ok(gateway.send("DELETE", at)) == {"deleted": True}
    assert gateway.send("GET", at).code == "session_not_found"


def test_a_session_needs_no_body(gateway: Gateway) -> None:
    for raw in (b"", b"{}"):
        assert ok(gateway.send("POST", SESSIONS, raw=raw), 201)["agent"] == "plain"


def test_history_is_paged(gateway: Gateway) -> None:
    at = f"{SESSIONS}/{ok(gateway.send('POST', SESSIONS), 201)['id']}/messages"
    for message in ("one", "two"):
        ok(gateway.send("POST", at, body={"message": message}))
    numbers: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ok(gateway.send("GET", f"{at}?limit=3&cursor={cursor}"))
        numbers += [message["seq"] for message in page["messages"]]
        cursor = page["next_cursor"]
    assert numbers == [1, 2, 3, 4]


def test_an_index_is_written_read_searched_and_deleted(gateway: Gateway) -> None:
    write = ok(gateway.send("POST", f"{NOTES}/documents", body=DOCUMENTS))
    assert write == {"index_id": "notes", "doc_count": 2, "ingested": 2, "replaced": 0, "version": 1}
    append = gateway.send("POST", f"{NOTES}/documents/append", body={"documents": [{"id": "c", "text": "gamma"}]})
    assert ok(append)["doc_count"] == 3
    assert append.headers["spass-cost-sub-calls"] == "1"
    answer = ok(gateway.send("POST", f"{NOTES}/query", body={"query": "beta", "top_k": 1}))
    assert (answer["version"], answer["results"][0]["id"], answer["results"][0]["metadata"]) == (2, "b", {"n": 1})
    assert ok(gateway.send("GET", "/a1/rag/indices"))["indices"][0]["id"] == "notes"
    assert ok(gateway.send("GET", NOTES))["doc_count"] == 3
    assert ok(gateway.send("GET", f"{NOTES}/documents/a"))["text"] == "alpha"
    page = ok(gateway.send("GET", f"{NOTES}/documents?limit=2"))
    assert [document["id"] for document in page["documents"]] == ["a", "b"]
    rest = ok(gateway.send("GET", f"{NOTES}/documents?cursor={page['next_cursor']}"))
    assert [document["id"] for document in rest["documents"]] == ["c"]
    assert rest["next_cursor"] is None
    for deleted in (True, False):
        assert ok(gateway.send("DELETE", f"{NOTES}/documents/a")) == {"deleted": deleted}
    assert gateway.send("GET", f"{NOTES}/documents/a").code == "document_not_found"
    for deleted in (True, False):
        assert ok(gateway.send("DELETE", NOTES)) == {"deleted": deleted}
    assert gateway.send("GET", NOTES).code == "index_not_found"


def test_a_patch_embeds_only_a_new_text(gateway: Gateway) -> None:
    ok(gateway.send("POST", f"{NOTES}/documents", body=DOCUMENTS))
    before = ok(gateway.send("GET", f"{NOTES}/documents/b"))
    texts_before = len(gateway.model.embedded_texts)
    for body in ({"metadata": {"n": 2}}, {"text": "beta"}, {"text": "beta", "metadata": {"n": 3}}):
        reply = gateway.send("PATCH", f"{NOTES}/documents/b", body=body)
        assert ok(reply)["text"] == "beta"
        assert "spass-cost-sub-calls" not in reply.headers
    assert len(gateway.model.embedded_texts) == texts_before
    reply = gateway.send("PATCH", f"{NOTES}/documents/b", body={"text": "delta"})
    patched = ok(reply)
    assert reply.headers["spass-cost-sub-calls"] == "1"
    assert gateway.model.embedded_texts[texts_before:] == ["delta"]
    assert (patched["text"], patched["metadata"], patched["created_at"]) == ("delta", {"n": 3}, before["created_at"])
    assert patched["updated_at"] > before["updated_at"]
    assert ok(gateway.send("GET", f"{NOTES}/documents/b")) == patched
    answer = ok(gateway.send("POST", f"{NOTES}/query", body={"query": "delta", "top_k": 1}))
    assert (answer["version"], answer["results"][0]["id"]) == (5, "b")
    assert gateway.send("PATCH", f"{NOTES}/documents/c", body={"text": "x"}).code == "document_not_found"
    assert gateway.send("PATCH", "/a1/rag/indices/absent/documents/a", body={"text": "x"}).code == "index_not_found"


def test_a_query_applies_its_filter_and_minimum_score(gateway: Gateway) -> None:
    years = [{"id": f"y{year}", "text": f"text {year}", "metadata": {"year": year, "even": year % 2 == 0}} for year in range(8)]
    ok(gateway.send("POST", f"{NOTES}/documents", body={"documents": years}))

    def query(**more: object) -> list[str]:
        answer = ok(gateway.send("POST", f"{NOTES}/query", body={"query": "text 3", "top_k": 50, **more}))
        return sorted(hit["id"] for hit in answer["results"])

    assert query(filter={"year": {"$gte": 2, "$lte": 5}, "even": True}) == ["y2", "y4"]
    assert query(filter={"year": {"$in": [1, 9]}}) == ["y1"]
    assert query(filter={"even": {"$ne": True}, "year": {"$lte": 3}}) == ["y1", "y3"]
    assert query(filter={"nowhere": 1}) == []
    assert len(query(filter={"even": False}, top_k=3)) == 3
    assert query(min_score=1) == ["y3"]
    assert query(min_score=1.5) == []
    assert len(query(filter={}, min_score=None)) == 8


def test_an_agent_with_an_index_searches_it_before_it_answers(gateway: Gateway) -> None:
    ok(gateway.send("POST", f"{NOTES}/documents", body=DOCUMENTS))
    reply = gateway.send("POST", "/a1/agents/reading/chat", body={"message": "beta"})
    ok(reply)
    assert any("beta" in message.content and message.content != "beta" for message in gateway.model.requests[-1].messages)
    assert reply.headers["spass-cost-sub-calls"] == "2"


def test_tools_are_listed_and_can_be_called(gateway: Gateway) -> None:
    entries = ok(gateway.send("GET", "/v1/tools"))["tools"]
    assert {"calculator", "current_datetime", "rag_query"} <= {tool["function"]["name"] for tool in entries}
    assert all(tool["type"] == "function" and tool["function"]["parameters"]["type"] == "object" for tool in entries)
    categories = {tool["function"]["name"]: tool["category"] for tool in entries}
    assert (categories["calculator"], categories["rag_query"], categories["memory_read"]) == ("math", "knowledge", "memory")
    answer = ok(gateway.send("POST", "/v1/tools/execute", body={"name": "calculator", "arguments": {"expression": "6*7"}}))
    assert set(answer) == {"name", "result", "duration_ms"}
    assert "42" in str(answer["result"])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "nobody", "arguments": {}}, "tool_not_found"),
        ({"name": "calculator", "arguments": {}}, "invalid_request"),
        ({"name": "calculator", "arguments": {"expression": 1}}, "invalid_request"),
        ({"name": "calculator", "arguments": {"expression": "1", "more": 1}}, "invalid_request"),
        ({"name": "calculator", "arguments": []}, "invalid_request"),
    ],
)
def test_a_bad_tool_call_is_refused(gateway: Gateway, body: object, code: str) -> None:
    assert gateway.send("POST", "/v1/tools/execute", body=body).code == code


def test_embeddings_are_numbers_or_base64(gateway: Gateway) -> None:
    import base64
    import struct

    body = {"model": "mini-embed", "input": ["one", "two"]}
    reply = gateway.send("POST", "/v1/embeddings", body=body, token="demo-admin-token")
    numbers = [entry["embedding"] for entry in ok(reply)["data"]]
    packed = ok(gateway.send("POST", "/v1/embeddings", body=body | {"encoding_format": "base64"}, token="demo-admin-token"))
    assert [list(struct.unpack("<8f", base64.b64decode(entry["embedding"]))) for entry in packed["data"]] == numbers
    assert reply.headers["spass-cost-sub-calls"] == "1"


def test_routes_that_embed_need_a_token_for_the_embedding_model(gateway: Gateway) -> None:
    documents = {"documents": [{"id": "a", "text": "alpha"}]}
    ok(gateway.send("POST", "/a1/rag/indices/notes/documents", body=documents))
    for path, body in (
        ("/v1/embeddings", {"model": "mini-embed", "input": "one"}),
        ("/a1/rag/indices/notes/documents", documents),
        ("/a1/rag/indices/notes/documents/append", documents),
        ("/a1/rag/indices/notes/query", {"query": "alpha"}),
    ):
        reply = gateway.send("POST", path, body=body, token="chat-only-token")
        assert (reply.status, reply.code) == (403, "model_not_allowed")
    patch = gateway.send("PATCH", "/a1/rag/indices/notes/documents/a", body={"text": "beta"}, token="chat-only-token")
    assert (patch.status, patch.code) == (403, "model_not_allowed")
    assert ok(gateway.send("GET", "/a1/rag/indices/notes"))["version"] == 1
    metadata = gateway.send("PATCH", "/a1/rag/indices/notes/documents/a", body={"metadata": {}}, token="chat-only-token")
    assert ok(metadata)["text"] == "alpha", "a change without a model call needs no model"


def test_an_index_of_another_model_refuses_only_requests_that_embed(gateway: Gateway, tmp_path: Path) -> None:
    ok(gateway.send("POST", f"{NOTES}/documents", body=DOCUMENTS))
    other = gateway.reconfigure(tmp_path / "other", "dimensions: 8", "dimensions: 4")
    upload = {"filename": "a.md", "content_type": "text/markdown", "size": 1}
    for method, path, body in (
        ("POST", f"{NOTES}/query", {"query": "alpha"}),
        ("POST", f"{NOTES}/documents/append", DOCUMENTS),
        ("PATCH", f"{NOTES}/documents/a", {"text": "new"}),
        ("POST", f"{NOTES}/uploads", upload),
    ):
        reply = other.send(method, path, body=body)
        assert (reply.status, reply.code) == (409, "embedding_model_mismatch"), path
    assert other.model.embedded_texts == []
    assert ok(other.send("GET", f"{NOTES}/documents/a"))["text"] == "alpha"
    assert ok(other.send("PATCH", f"{NOTES}/documents/a", body={"metadata": {"n": 0}}))["metadata"] == {"n": 0}
    assert ok(other.send("DELETE", f"{NOTES}/documents/a")) == {"deleted": True}
    assert ok(other.send("DELETE", NOTES)) == {"deleted": True}


def test_an_archived_session_redirects_to_its_successor(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    from spass.core.errors import SessionArchived
    from spass.runs.run import Run

    successor = ok(gateway.send("POST", SESSIONS), 201)["id"]

    async def raise_archived(run: Run) -> object:
        await run.wait()
        raise SessionArchived("Moved.", details={"successor_session_id": successor})

    monkeypatch.setattr(Run, "answer", raise_archived)
    at = f"{SESSIONS}/{ok(gateway.send('POST', SESSIONS), 201)['id']}/messages"
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "sessions-append")
    context = f'{{"path": "/{STAGE}{at}", "resourcePath": "/a1/agents/{{name}}/sessions/{{session_id}}/messages"}}'
    reply = gateway.send("POST", at, body={"message": "x"}, headers={"x-amzn-request-context": context})
    assert reply.status == 308
    assert reply.json == {"successor_session_id": successor}
    assert reply.headers["location"] == f"/{STAGE}{SESSIONS}/{successor}/messages"


def test_the_openapi_document_has_every_route_and_the_stage(gateway: Gateway) -> None:
    from infra.routes import ROUTES

    document = ok(gateway.send("GET", "/openapi.json", token=None))
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    excluded = {"/openapi.json", "/docs", "/docs/{file}", "/", "/ui", "/ui/{asset}"}
    assert documented == {(route.method, route.path) for route in ROUTES if route.path not in excluded}
    assert document["servers"] == [{"url": f"/{STAGE}"}]
    page = gateway.send("GET", "/docs", token=None).text
    assert f"/{STAGE}/openapi.json" in page
    assert f"/{STAGE}/docs/swagger-ui-bundle.js" in page
