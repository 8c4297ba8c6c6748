"""Every row of the rag surface, and the tools that curate it, against a started gateway: once through, as a client would."""

import re
import secrets
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from infra.routes import ROUTES, Surface
from tests.e2e.conftest import Gateway

SECONDS = 60.0
NOTES = b"""# Harz

Der Brocken ist mit 1141 Metern der h\xc3\xb6chste Berg im Harz.

## Bahn

Die Brockenbahn f\xc3\xa4hrt seit 1899 mit Dampf auf den Gipfel.
"""
BERGE = [
    {"id": "zugspitze", "text": "Die Zugspitze ist der höchste Berg Deutschlands.", "metadata": {"m": 2962, "land": "by"}},
    {"id": "watzmann", "text": "Der Watzmann steht bei Berchtesgaden.", "metadata": {"m": 2713, "land": "by"}},
    {"id": "feldberg", "text": "Der Feldberg ist der höchste Berg im Schwarzwald.", "metadata": {"m": 1493, "land": "bw"}},
]


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client


@pytest.fixture
def index() -> str:
    return f"berge-{secrets.token_hex(4)}"


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_every_row_answers_as_the_contract_says(client: httpx.Client, index: str) -> None:
    called: list[str] = []
    client.event_hooks["request"] = [lambda request: called.append(f"{request.method} {request.url.raw_path.decode()}")]
    at = f"/a1/rag/indices/{index}"

    written = ok(client.post(f"{at}/documents", json={"documents": BERGE[:2]}))
    assert written == {"index_id": index, "doc_count": 2, "ingested": 2, "replaced": 0, "version": 1}
    appended = ok(client.post(f"{at}/documents/append", json={"documents": BERGE[1:]}))
    assert appended == {"index_id": index, "doc_count": 3, "ingested": 2, "replaced": 1, "version": 2}

    described = ok(client.get(at))
    assert (described["doc_count"], described["version"], described["dimensions"]) == (3, 2, 384)
    assert index in [listed["id"] for listed in ok(client.get("/a1/rag/indices?limit=1000"))["indices"]]
    page = ok(client.get(f"{at}/documents", params={"limit": 2}))
    rest = ok(client.get(f"{at}/documents", params={"limit": 2, "cursor": page["next_cursor"]}))
    assert [document["id"] for document in page["documents"] + rest["documents"]] == ["feldberg", "watzmann", "zugspitze"]
    assert rest["next_cursor"] is None
    before = ok(client.get(f"{at}/documents/watzmann"))
    assert (before["text"], before["metadata"]) == (BERGE[1]["text"], BERGE[1]["metadata"])

    patched = client.patch(f"{at}/documents/watzmann", json={"metadata": {"m": 2713, "land": "by", "see": True}})
    assert "SPASS-Cost-Sub-Calls" not in patched.headers
    assert ok(patched)["created_at"] == before["created_at"]
    reworded = client.patch(f"{at}/documents/watzmann", json={"text": "Der Watzmann steht über dem Königssee."})
    assert reworded.headers["SPASS-Cost-Sub-Calls"] == "1"
    assert ok(reworded)["metadata"] == {"m": 2713, "land": "by", "see": True}

    asked: dict[str, Any] = {"query": "Was ist die Zugspitze?", "top_k": 1}
    assert ok(client.post(f"{at}/query", json=asked))["results"][0]["id"] == "zugspitze"
    below = ok(client.post(f"{at}/query", json=asked | {"filter": {"m": {"$lte": 2000}}}))
    assert ([hit["id"] for hit in below["results"]], below["version"]) == (["feldberg"], 4)
    assert ok(client.post(f"{at}/query", json=asked | {"min_score": 0.999}))["results"] == []

    ticket = ok(client.post(f"{at}/uploads", json={"filename": "harz.md", "content_type": "text/markdown", "size": 500}))
    assert ok(client.get(f"{at}/uploads/{ticket['upload_id']}"))["status"] == "waiting"
    assert [upload["id"] for upload in ok(client.get(f"{at}/uploads"))["uploads"]] == [ticket["upload_id"]]

    for deleted in (True, False):
        assert ok(client.delete(f"{at}/documents/feldberg")) == {"deleted": deleted}
    assert refused(client.get(f"{at}/documents/feldberg")) == (404, "document_not_found")
    for deleted in (True, False):
        assert ok(client.delete(at)) == {"deleted": deleted}
    assert refused(client.get(at)) == (404, "index_not_found")
    again = ok(client.post(f"{at}/documents/append", json={"documents": BERGE[:1]}))
    assert (again["doc_count"], again["version"]) == (1, 7), "a version never goes back"

    for row in ROUTES:
        pattern = re.compile(f"{row.method} {re.sub(r'{[a-z_]+}', '[^/]+', row.path)}")
        if row.surface is Surface.RAG:
            assert any(pattern.fullmatch(call.partition("?")[0]) for call in called), f"{row.path} was not called"


def test_a_file_goes_through_the_bucket_and_is_found(client: httpx.Client, index: str) -> None:
    at = f"/a1/rag/indices/{index}"
    body = {"filename": "harz.md", "content_type": "text/markdown", "size": len(NOTES)}
    ticket = ok(client.post(f"{at}/uploads", json=body))
    send_file(ticket, "harz.md", NOTES)
    upload = ended(client, f"{at}/uploads/{ticket['upload_id']}")
    assert upload == {
        "id": ticket["upload_id"],
        "filename": "harz.md",
        "status": "succeeded",
        "bytes_done": len(NOTES),
        "bytes_total": len(NOTES),
        "documents_ingested": upload["documents_ingested"],
        "documents_failed": 0,
        "errors": [],
    }
    assert ok(client.get(at))["doc_count"] == upload["documents_ingested"] > 0
    found = ok(client.post(f"{at}/query", json={"query": "Seit wann fährt die Brockenbahn?", "top_k": 1}))["results"][0]
    assert found["id"].startswith("harz.md#")
    assert "1899" in found["text"]
    assert found["metadata"]["source"] == "harz.md"
    assert NOTES[found["metadata"]["start"] : found["metadata"]["end"]].decode().strip() == found["text"].strip()

    chunk = f"{at}/documents/{quote(found['id'], safe='')}"
    assert ok(client.get(chunk))["text"] == found["text"]
    assert ok(client.patch(chunk, json={"metadata": {"source": "harz.md", "checked": True}}))["metadata"]["checked"] is True
    assert ok(client.delete(chunk)) == {"deleted": True}
    assert refused(client.get(chunk)) == (404, "document_not_found")


@pytest.mark.parametrize("filename", ["große Datei (1).md", "a+b&c=d%41.txt", "#1.md", "x" * 250 + ".md"])
def test_a_file_may_be_called_what_its_owner_likes(client: httpx.Client, index: str, filename: str) -> None:
    at = f"/a1/rag/indices/{index}"
    body = {"filename": filename, "content_type": "text/plain", "size": 100}
    ticket = ok(client.post(f"{at}/uploads", json=body))
    send_file(ticket, filename, b"Ein Satz.")
    upload = ended(client, f"{at}/uploads/{ticket['upload_id']}")
    assert (upload["status"], upload["filename"], upload["documents_ingested"]) == ("succeeded", filename, 1)
    (document,) = ok(client.get(f"{at}/documents"))["documents"]
    assert document["metadata"]["source"] == filename
    assert ok(client.get(f"{at}/documents/{quote(document['id'], safe='')}")) == document


def send_file(ticket: dict[str, Any], filename: str, file: bytes) -> None:
    """What a browser does with the form. No token goes along: the form is the permission."""
    files = {"file": (filename, file, ticket["fields"]["Content-Type"])}
    sent = httpx.post(ticket["url"], data=ticket["fields"], files=files, timeout=30, trust_env=False)
    assert sent.is_success, sent.text


def ended(client: httpx.Client, path: str) -> dict[str, Any]:
    """The upload at its end; on the way there it only moves forward."""
    order = ["waiting", "queued", "running", "succeeded", "failed"]
    seen = [0]
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        upload: dict[str, Any] = ok(client.get(path))
        seen.append(order.index(upload["status"]))
        assert seen == sorted(seen), upload
        if seen[-1] >= order.index("succeeded"):
            return upload
        time.sleep(0.05)
    pytest.fail(f"the upload did not end within {SECONDS:.0f} s")


def test_a_tool_that_writes_does_so_when_it_is_called_the_second_time(client: httpx.Client, index: str) -> None:
    def run(name: str, **arguments: object) -> httpx.Response:
        return client.post("/v1/tools/execute", json={"name": name, "arguments": arguments})

    def result(name: str, **arguments: object) -> Any:
        return ok(run(name, **arguments))["result"]

    def confirmed(name: str, **arguments: object) -> Any:
        asked = result(name, index_id=index, **arguments)
        assert (asked["confirm_required"], asked["op"], asked["expires_in_seconds"]) == (True, name, 60)
        assert asked["preview"]["index_id"] == index
        done = result(name, index_id=index, **arguments, confirm_token=asked["confirm_token"])
        used = run(name, index_id=index, **arguments, confirm_token=asked["confirm_token"])
        assert refused(used) == (409, "confirm_token_invalid")
        return done

    assert confirmed("rag_index_create", documents=BERGE[:2])["version"] == 1
    assert confirmed("rag_doc_append", documents=BERGE[2:])["doc_count"] == 3
    assert confirmed("rag_doc_patch", doc_id="feldberg", metadata={"m": 1493})["metadata"] == {"m": 1493}
    assert index in str(result("rag_index_list"))
    assert result("rag_index_describe", index_id=index)["doc_count"] == 3
    assert "Schwarzwald" in str(result("rag_doc_list", index_id=index, limit=1))
    assert result("rag_doc_get", index_id=index, doc_id="watzmann")["text"] == BERGE[1]["text"]
    assert "zugspitze" in str(result("rag_query", index_id=index, query="Was ist die Zugspitze?", top_k=1))
    assert confirmed("rag_doc_delete", doc_id="watzmann") == {"deleted": True}
    assert confirmed("rag_index_delete") == {"deleted": True}
    assert refused(client.get(f"/a1/rag/indices/{index}")) == (404, "index_not_found")
