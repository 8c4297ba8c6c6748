"""Ingest files through the bucket, queue and functions of the emulator."""

import time

from tests.e2e.conftest import Gateway
from tests.e2e.upload_client import SECONDS, documents, put, upload, wait_for_upload

PLACES = b"# Berlin\n\nDas Brandenburger Tor steht am Pariser Platz.\n\n# Hamburg\n\nDer Michel ist eine Kirche am Hafen.\n"


def test_a_file_put_through_its_form_is_found_by_a_query(gateway: Gateway) -> None:
    with gateway.client() as client:
        upload_id, _ = put(client, "places", "places.md", PLACES)
        state = upload(client, "places", upload_id, wait_for_upload)
        assert (state["status"], state["documents_ingested"], state["errors"]) == ("succeeded", 2, [])
        assert state["bytes_done"] == state["bytes_total"] == len(PLACES)
        reply = client.post("/a1/rag/indices/places/query", json={"query": "Welche Kirche steht am Hafen?", "top_k": 1}).json()
        assert "Michel" in reply["results"][0]["text"]


def test_a_file_that_an_operator_puts_into_the_bucket_is_ingested_too(gateway: Gateway) -> None:
    with gateway.client() as client:
        _, form = put(client, "operators", "first.md", PLACES)
        bucket = form["url"].rstrip("/").rpartition("/")[2]
        s3 = gateway.aws_client("s3")
        key = "uploads/demo/operators/by hand/zweite Datei.csv"
        for text in ("Gouda", "Emmentaler"):  # two versions are two uploads of one document, in any order
            s3.put_object(Bucket=bucket, Key=key, Body=f"id,text\nkaese,Der {text}\n".encode())
        deadline = time.monotonic() + SECONDS
        while True:
            uploads = client.get("/a1/rag/indices/operators/uploads").json()["uploads"]
            if len(uploads) == 3 and all(map(wait_for_upload, uploads)):
                break
            assert time.monotonic() < deadline, uploads
            time.sleep(0.1)
        by_hand = "by hand/zweite Datei.csv"
        assert sorted(upload["filename"] for upload in uploads) == [by_hand, by_hand, "first.md"]
        failures = [upload["errors"][0]["code"] for upload in uploads if upload["status"] == "failed"]
        assert failures in ([], ["superseded"])
        assert documents(client, "operators").count("kaese") == 1
        assert client.get("/a1/rag/indices/operators/documents/kaese").json()["text"] == "Der Emmentaler"
