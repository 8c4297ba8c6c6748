"""Upload files through the routes: get a form, put the file, let the worker ingest it, and read its progress."""

import json
from typing import Any
from urllib.parse import quote_plus

import boto3
import pytest

from functions.workers import jobs
from spass.core.time import epoch_s
from tests.functions.gateway import BUCKET, Gateway, Reply, escaped

pytestmark = pytest.mark.moto

UPLOADS = "/a1/rag/indices/notes/uploads"
NOTES = "# Seas\n\nThe Baltic is shallow.\n\n# Hills\n\nThe Harz is high.\n"


def ok(reply: Reply, status: int = 200) -> Any:
    assert reply.status == status, reply.text
    return reply.json


def ticket_for(gateway: Gateway, filename: str, size: int = 10_000) -> dict[str, Any]:
    body = {"filename": filename, "content_type": "text/plain", "size": size}
    ticket: dict[str, Any] = ok(gateway.send("POST", UPLOADS, body=body))
    return ticket


def put(gateway: Gateway, ticket: dict[str, Any], content: str) -> None:
    """Put the file, and deliver the bucket's event to the worker."""
    key = ticket["fields"]["key"]
    sent = boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=content.encode())
    event = {"eventName": "ObjectCreated:Post", "s3": {"object": {"key": quote_plus(key), "eTag": sent["ETag"].strip('"')}}}
    message = {
        "messageId": "m1",
        "body": json.dumps({"Records": [event]}),
        "attributes": {"ApproximateReceiveCount": "1"},
    }
    assert gateway.work(jobs.work, {"Records": [message]}) == {"batchItemFailures": []}


def test_a_form_has_the_key_and_the_time_of_expiry(gateway: Gateway) -> None:
    ticket = ticket_for(gateway, "notes.md")
    assert ticket["url"].startswith("https://")
    assert ticket["fields"]["key"] == f"uploads/demo/notes/{ticket['upload_id']}/notes.md"
    assert ticket["fields"]["Content-Type"] == "text/plain"
    waiting = ok(gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}"))
    assert (waiting["status"], waiting["bytes_done"], waiting["bytes_total"]) == ("waiting", 0, 10_000)
    assert gateway.send("GET", "/a1/rag/indices/notes").code == "index_not_found", (
        "the index does not exist before the file arrives"
    )


def test_an_idempotency_key_returns_the_same_form_until_it_expires(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"filename": "notes.md", "content_type": "text/plain", "size": 10}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "temporary")
    first = ok(gateway.send("POST", UPLOADS, body=body, headers={"Idempotency-Key": "k"}))
    until = epoch_s(first["expires_at"])
    for at, replayed in ((until - 1, True), (until, False)):
        for module in ("spass.store.idempotency", "spass.store.table"):
            monkeypatch.setattr(f"{module}.now_s", lambda at=at: at)
        ticket = ok(gateway.send("POST", UPLOADS, body=body, headers={"Idempotency-Key": "k"}))
        assert (ticket["upload_id"] == first["upload_id"]) is replayed


def test_documents_of_a_markdown_file_are_found_read_patched_and_deleted_by_id(gateway: Gateway) -> None:
    ticket = ticket_for(gateway, "notes.md")
    put(gateway, ticket, NOTES)
    upload = ok(gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}"))
    assert (upload["status"], upload["errors"], upload["documents_failed"]) == ("succeeded", [], 0)
    assert upload["bytes_done"] == upload["bytes_total"] == len(NOTES)
    listed = ok(gateway.send("GET", "/a1/rag/indices/notes/documents"))["documents"]
    assert len(listed) == upload["documents_ingested"] > 0
    assert all(document["id"].startswith("notes.md#") for document in listed)
    assert all(set(document["metadata"]) == {"source", "start", "end"} for document in listed)
    chunk = listed[0]
    path = f"/a1/rag/indices/notes/documents/{escaped(chunk['id'])}"
    assert "%23" in path
    assert ok(gateway.send("GET", path)) == chunk
    assert ok(gateway.send("PATCH", path, body={"metadata": {"seen": True}}))["metadata"] == {"seen": True}
    assert ok(gateway.send("DELETE", path)) == {"deleted": True}
    assert gateway.send("GET", path).code == "document_not_found"


def test_a_client_cannot_choose_an_id_with_a_number_sign(gateway: Gateway) -> None:
    body = {"documents": [{"id": "notes.md#1", "text": "x"}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents/append", body=body).code == "invalid_request"
    for segment in ("a%23x", "a%230", "a%23", "%231", "a%231%232"):
        assert gateway.send("GET", f"/a1/rag/indices/notes/documents/{segment}").code == "invalid_request", segment


def test_an_invalid_line_is_counted_and_reported(gateway: Gateway) -> None:
    ticket = ticket_for(gateway, "lines.jsonl")
    put(gateway, ticket, '{"id": "a", "text": "alpha"}\nnonsense\n{"text": "gamma", "metadata": {"n": 3}}\n')
    upload = ok(gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}"))
    assert (upload["status"], upload["documents_ingested"], upload["documents_failed"]) == ("succeeded", 2, 1)
    assert [(error["line"], error["code"]) for error in upload["errors"]] == [(2, "invalid_request")]
    documents = ok(gateway.send("GET", "/a1/rag/indices/notes/documents"))["documents"]
    assert [document["id"] for document in documents] == ["a", "lines.jsonl#3"]


@pytest.mark.parametrize(("filename", "content"), [("a.csv", "id,words\n1,x\n"), ("a.md", ""), ("a.txt", "\n \n")])
def test_a_file_that_cannot_be_read_stores_nothing(gateway: Gateway, filename: str, content: str) -> None:
    ticket = ticket_for(gateway, filename)
    put(gateway, ticket, content)
    upload = ok(gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}"))
    assert (upload["status"], upload["documents_ingested"], len(upload["errors"])) == ("failed", 0, 1)
    assert gateway.send("GET", "/a1/rag/indices/notes").code == "index_not_found"


def test_uploads_are_paged_the_newest_first(gateway: Gateway) -> None:
    ids = [ticket_for(gateway, f"{number}.md")["upload_id"] for number in range(5)]
    listed_ids: list[str] = []
    path = f"{UPLOADS}?limit=2"
    while path:
        page = ok(gateway.send("GET", path))
        listed_ids += [upload["id"] for upload in page["uploads"]]
        path = f"{UPLOADS}?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert sorted(listed_ids) == sorted(ids)
    assert ok(gateway.send("GET", "/a1/rag/indices/other-notes/uploads")) == {"uploads": [], "next_cursor": None}
    assert gateway.send("GET", f"/a1/rag/indices/other-notes/uploads/{ids[0]}").code == "upload_not_found"


def test_no_form_is_created_for_a_token_that_may_not_embed(gateway: Gateway) -> None:
    body = {"filename": "a.md", "content_type": "text/markdown", "size": 1}
    assert gateway.send("POST", UPLOADS, body=body, token="chat-only-token").code == "model_not_allowed"
