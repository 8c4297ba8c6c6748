"""Call every route of the retrieval API, and the tools that change indexes, on a running gateway."""

import re
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from infra.routes import ROUTES, Surface
from tests.e2e.conftest import Gateway, wait_until
from tests.e2e.upload_client import documents, has_ended, put, upload

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


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_every_route_answers_as_documented(client: httpx.Client, index: str) -> None:
    calls: list[str] = []
    client.event_hooks["request"] = [lambda request: calls.append(f"{request.method} {request.url.raw_path.decode()}")]
    index_path = f"/a1/rag/indices/{index}"

    written = ok(client.post(f"{index_path}/documents", json={"documents": BERGE[:2]}))
    assert written == {"index_id": index, "doc_count": 2, "ingested": 2, "replaced": 0, "version": 1}
    appended = ok(client.post(f"{index_path}/documents/append", json={"documents": BERGE[1:]}))
    assert appended == {"index_id": index, "doc_count": 3, "ingested": 2, "replaced": 1, "version": 2}

    described = ok(client.get(index_path))
    assert (described["doc_count"], described["version"], described["dimensions"]) == (3, 2, 384)
    assert index in [listed["id"] for listed in ok(client.get("/a1/rag/indices?limit=1000"))["indices"]]
    page = ok(client.get(f"{index_path}/documents", params={"limit": 2}))
    rest = ok(client.get(f"{index_path}/documents", params={"limit": 2, "cursor": page["next_cursor"]}))
    assert [document["id"] for document in page["documents"] + rest["documents"]] == ["feldberg", "watzmann", "zugspitze"]
    assert rest["next_cursor"] is None
    before = ok(client.get(f"{index_path}/documents/watzmann"))
    assert (before["text"], before["metadata"]) == (BERGE[1]["text"], BERGE[1]["metadata"])

    patched = client.patch(f"{index_path}/documents/watzmann", json={"metadata": {"m": 2713, "land": "by", "see": True}})
    assert "SPASS-Cost-Sub-Calls" not in patched.headers
    assert ok(patched)["created_at"] == before["created_at"]
    reworded = client.patch(f"{index_path}/documents/watzmann", json={"text": "Der Watzmann steht über dem Königssee."})
    assert reworded.headers["SPASS-Cost-Sub-Calls"] == "1"
    assert ok(reworded)["metadata"] == {"m": 2713, "land": "by", "see": True}

    query: dict[str, Any] = {"query": "Was ist die Zugspitze?", "top_k": 1}
    assert ok(client.post(f"{index_path}/query", json=query))["results"][0]["id"] == "zugspitze"
    filtered = ok(client.post(f"{index_path}/query", json=query | {"filter": {"m": {"$lte": 2000}}}))
    assert ([hit["id"] for hit in filtered["results"]], filtered["version"]) == (["feldberg"], 4)
    assert ok(client.post(f"{index_path}/query", json=query | {"min_score": 0.999}))["results"] == []

    form = ok(client.post(f"{index_path}/uploads", json={"filename": "harz.md", "content_type": "text/markdown", "size": 500}))
    assert ok(client.get(f"{index_path}/uploads/{form['upload_id']}"))["status"] == "waiting"
    assert [upload["id"] for upload in ok(client.get(f"{index_path}/uploads"))["uploads"]] == [form["upload_id"]]

    for deleted in (True, False):
        assert ok(client.delete(f"{index_path}/documents/feldberg")) == {"deleted": deleted}
    assert status_and_code(client.get(f"{index_path}/documents/feldberg")) == (404, "document_not_found")
    for deleted in (True, False):
        assert ok(client.delete(index_path)) == {"deleted": deleted}
    assert status_and_code(client.get(index_path)) == (404, "index_not_found")
    recreated = ok(client.post(f"{index_path}/documents/append", json={"documents": BERGE[:1]}))
    assert (recreated["doc_count"], recreated["version"]) == (1, 7), "the version must continue after a deletion"

    for route in ROUTES:
        pattern = re.compile(f"{route.method} {re.sub(r'{[a-z_]+}', '[^/]+', route.path)}")
        if route.surface is Surface.RAG:
            assert any(pattern.fullmatch(call.partition("?")[0]) for call in calls), f"{route.path} was not called"


def test_the_chunks_of_an_uploaded_file_are_found_changed_and_deleted(client: httpx.Client, index: str) -> None:
    index_path = f"/a1/rag/indices/{index}"
    upload_id, _ = put(client, index, "harz.md", NOTES)
    state = upload(client, index, upload_id, has_ended)
    assert state == {
        "id": upload_id,
        "filename": "harz.md",
        "status": "succeeded",
        "bytes_done": len(NOTES),
        "bytes_total": len(NOTES),
        "documents_ingested": state["documents_ingested"],
        "documents_failed": 0,
        "errors": [],
    }
    assert ok(client.get(index_path))["doc_count"] == state["documents_ingested"] > 0
    hit = ok(client.post(f"{index_path}/query", json={"query": "Seit wann fährt die Brockenbahn?", "top_k": 1}))["results"][0]
    assert hit["id"].startswith("harz.md#")
    assert "1899" in hit["text"]
    assert hit["metadata"]["source"] == "harz.md"
    assert NOTES[hit["metadata"]["start"] : hit["metadata"]["end"]].decode().strip() == hit["text"].strip()

    chunk = f"{index_path}/documents/{quote(hit['id'], safe='')}"
    assert ok(client.get(chunk))["text"] == hit["text"]
    assert ok(client.patch(chunk, json={"metadata": {"source": "harz.md", "checked": True}}))["metadata"]["checked"] is True
    assert ok(client.delete(chunk)) == {"deleted": True}
    assert status_and_code(client.get(chunk)) == (404, "document_not_found")


@pytest.mark.parametrize("filename", ["große Datei (1).md", "a+b&c=d%41.txt", "#1.md", "x" * 250 + ".md"])
def test_an_upload_accepts_a_filename_with_special_characters(client: httpx.Client, index: str, filename: str) -> None:
    index_path = f"/a1/rag/indices/{index}"
    upload_id, _ = put(client, index, filename, b"Ein Satz.")
    state = upload(client, index, upload_id, has_ended)
    assert (state["status"], state["filename"], state["documents_ingested"]) == ("succeeded", filename, 1)
    (document,) = ok(client.get(f"{index_path}/documents"))["documents"]
    assert document["metadata"]["source"] == filename
    assert ok(client.get(f"{index_path}/documents/{quote(document['id'], safe='')}")) == document


def test_a_file_that_an_operator_puts_into_the_bucket_is_ingested_too(gateway: Gateway, client: httpx.Client) -> None:
    _, form = put(client, "operators", "first.md", NOTES)
    bucket = form["url"].rstrip("/").rpartition("/")[2]
    s3 = gateway.aws_client("s3")
    key = "uploads/demo/operators/by hand/zweite Datei.csv"
    for text in ("Gouda", "Emmentaler"):  # two versions are two uploads of one document, in any order
        s3.put_object(Bucket=bucket, Key=key, Body=f"id,text\nkaese,Der {text}\n".encode())

    def uploads() -> list[Any]:
        return list(ok(client.get("/a1/rag/indices/operators/uploads"))["uploads"])

    wait_until(lambda: [*map(has_ended, uploads())] == [True] * 3)
    by_hand = "by hand/zweite Datei.csv"
    assert sorted(one["filename"] for one in uploads()) == [by_hand, by_hand, "first.md"]
    failures = [one["errors"][0]["code"] for one in uploads() if one["status"] == "failed"]
    assert failures in ([], ["superseded"])
    assert documents(client, "operators").count("kaese") == 1
    assert ok(client.get("/a1/rag/indices/operators/documents/kaese"))["text"] == "Der Emmentaler"
