"""Files on their way into an index: through the emulator's bucket, queue, functions and state machine, over a stop as well."""

import json
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import httpx
from botocore.config import Config

from tests.e2e.conftest import Gateway

PLACES = b"# Berlin\n\nDas Brandenburger Tor steht am Pariser Platz.\n\n# Hamburg\n\nDer Michel ist eine Kirche am Hafen.\n"
SECONDS = 240.0
ENDED = ("succeeded", "failed")


def _put(client: httpx.Client, index: str, filename: str, content: bytes) -> tuple[str, Mapping[str, Any]]:
    """Upload a file as a client does, and return its id and the form it went by."""
    wanted = {"filename": filename, "content_type": "application/octet-stream", "size": len(content)}
    form = client.post(f"/a1/rag/indices/{index}/uploads", json=wanted).raise_for_status().json()
    files = {"file": (filename, content)}
    httpx.post(form["url"], data=form["fields"], files=files, timeout=60, trust_env=False).raise_for_status()
    return form["upload_id"], form


def _upload(client: httpx.Client, index: str, upload: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The upload's state from when ``until`` holds of it."""
    deadline = time.monotonic() + SECONDS
    while True:
        state: dict[str, Any] = client.get(f"/a1/rag/indices/{index}/uploads/{upload}").raise_for_status().json()
        if until(state):
            return state
        assert time.monotonic() < deadline, f"the upload stays {state}"
        time.sleep(0.1)


def _ended(state: Mapping[str, Any]) -> bool:
    return state["status"] in ENDED


def _documents(client: httpx.Client, index: str) -> list[str]:
    """The ids of all documents, page by page."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get(f"/a1/rag/indices/{index}/documents", params={"cursor": cursor} if cursor else {}).json()
        ids += [document["id"] for document in page["documents"]]
        cursor = page["next_cursor"]
        if not cursor:
            return ids


def test_a_file_put_through_its_form_is_found_by_a_query(gateway: Gateway) -> None:
    with gateway.client() as client:
        upload, _ = _put(client, "places", "places.md", PLACES)
        state = _upload(client, "places", upload, _ended)
        assert (state["status"], state["documents_ingested"], state["errors"]) == ("succeeded", 2, [])
        assert state["bytes_done"] == state["bytes_total"] == len(PLACES)
        found = client.post("/a1/rag/indices/places/query", json={"query": "Welche Kirche steht am Hafen?", "top_k": 1}).json()
        assert "Michel" in found["results"][0]["text"]


def test_a_file_that_an_operator_puts_into_the_bucket_is_ingested_too(gateway: Gateway) -> None:
    with gateway.client() as client:
        _, form = _put(client, "operators", "first.md", PLACES)
        endpoint, _, bucket = form["url"].rstrip("/").rpartition("/")
        session = boto3.Session("local", "local", region_name="eu-central-1")
        s3 = session.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))
        key = "uploads/demo/operators/by hand/zweite Datei.csv"
        for text in ("Gouda", "Emmentaler"):  # two versions, and so two uploads of the same document, in whatever order
            s3.put_object(Bucket=bucket, Key=key, Body=f"id,text\nkaese,Der {text}\n".encode())
        deadline = time.monotonic() + SECONDS
        while True:
            uploads = client.get("/a1/rag/indices/operators/uploads").json()["uploads"]
            if len(uploads) == 3 and all(map(_ended, uploads)):
                break
            assert time.monotonic() < deadline, uploads
            time.sleep(0.1)
        by_hand = "by hand/zweite Datei.csv"
        assert sorted(upload["filename"] for upload in uploads) == [by_hand, by_hand, "first.md"]
        failures = [upload["errors"][0]["code"] for upload in uploads if upload["status"] == "failed"]
        assert failures in ([], ["superseded"])
        assert _documents(client, "operators").count("kaese") == 1
        assert client.get("/a1/rag/indices/operators/documents/kaese").json()["text"] == "Der Emmentaler"


def _large(good: int) -> bytes:
    """A file for the state machine: lines that are refused, which is quick, and so many that are not."""
    refused = json.dumps({"id": "refused", "text": "x" * 9000, "metadata": {}}) + "\n"
    lines = [json.dumps({"id": f"d{number}", "text": f"Dokument {number}", "metadata": {}}) + "\n" for number in range(good)]
    content = "".join(line + refused * (1 + 18 * 2**20 // len(refused) // good) for line in lines).encode()
    assert len(content) > 16 * 2**20, "a worker of the queue would ingest it alone"
    return content


def test_a_large_file_goes_on_where_ctrl_c_stopped_it_and_has_each_document_once(new_gateway: Callable[[], Gateway]) -> None:
    good = 600
    first = new_gateway()
    first.start()
    with first.client() as client:
        upload, _ = _put(client, "large", "large.jsonl", _large(good))
        before = _upload(client, "large", upload, lambda state: bool(state["bytes_done"]))
        assert before["status"] == "running"
    stopping = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - stopping < 10

    second = new_gateway()
    second.start()
    with second.client() as client:
        after = _upload(client, "large", upload, _ended)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", good)
        assert after["bytes_done"] == after["bytes_total"]
        assert sorted(_documents(client, "large")) == sorted(f"d{number}" for number in range(good))
        index = client.get("/a1/rag/indices/large").json()
        assert index["doc_count"] == good
    assert "worker_failed" not in second.output


def test_a_small_file_goes_on_after_the_gateway_was_killed(new_gateway: Callable[[], Gateway]) -> None:
    good = 800
    content = "".join(json.dumps({"id": f"d{n}", "text": f"Dokument {n}", "metadata": {}}) + "\n" for n in range(good)).encode()
    first = new_gateway()
    first.start()
    with first.client() as client:
        upload, _ = _put(client, "small", "small.jsonl", content)
        _upload(client, "small", upload, lambda state: bool(state["bytes_done"]))
    first.stop(signal.SIGKILL)

    second = new_gateway()
    second.start()
    with second.client() as client:
        after = _upload(client, "small", upload, _ended)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", good)
        assert client.get("/a1/rag/indices/small").json()["doc_count"] == good
