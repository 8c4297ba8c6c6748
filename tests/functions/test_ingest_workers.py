"""Invoke the worker of the job queue as Lambda does, with the events of files that tenants uploaded."""

import json
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import boto3
import pytest

from functions.workers import jobs
from spass.core.bus import INFERENCE_END
from spass.core.jobs import IngestPart, Job, body_of
from spass.core.messages import Json
from spass.jobs.background import background_handler
from spass.models.errors import BackendUnavailable
from spass.rag.ingest.lease import IngestSettings
from spass.testing.event_log import EventLog
from spass.web.startup import WorkerFunction, worker_handler
from tests.functions.gateway import BUCKET, Gateway

pytestmark = pytest.mark.moto

UPLOADS = "/a1/rag/indices/books/uploads"


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    change_settings(monkeypatch)


def change_settings(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change the settings of the ingest. The worker never retries: a failed message goes back to the queue."""
    handler = partial(background_handler, ingest=IngestSettings(retry_pause_seconds=(), **changes))
    monkeypatch.setattr("functions.workers.jobs.background_handler", handler)


@pytest.fixture
def queue(gateway: Gateway) -> Iterator[WorkerFunction]:
    handler = worker_handler(jobs.work, gateway.services)
    yield handler
    handler.close()


def invoke(handler: WorkerFunction, event: Any) -> Json:
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000)
    return handler(event, context)


def messages(*bodies: str, receives: int = 1) -> dict[str, Json]:
    """Return the event with which SQS delivers messages m0, m1, … to a function."""
    attributes: dict[str, Json] = {"ApproximateReceiveCount": str(receives)}
    return {"Records": [{"messageId": f"m{n}", "body": body, "attributes": attributes} for n, body in enumerate(bodies)]}


def put(key: str, body: bytes) -> str:
    """Store an object and return the body of the message with its event."""
    answer = boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=body)
    entry = {"key": key, "size": len(body), "eTag": answer["ETag"], "sequencer": "01"}
    if "VersionId" in answer:
        entry["versionId"] = answer["VersionId"]
    return json.dumps({"Records": [{"eventName": "ObjectCreated:Post", "s3": {"bucket": {"name": BUCKET}, "object": entry}}]})


def test_the_embedding_of_a_file_publishes_on_the_bus_of_the_process(gateway: Gateway, queue: WorkerFunction) -> None:
    log = EventLog(gateway.services.bus)
    request = {"filename": "a.jsonl", "content_type": "application/jsonl", "size": 1000}
    ticket = gateway.send("POST", UPLOADS, body=request).json
    invoke(queue, messages(put(ticket["fields"]["key"], b'{"id": "a", "text": "Berlin is a city."}\n')))
    log.check()
    assert [(end.model, end.status) for end in log.of(INFERENCE_END)] == [("mini-embed", "ok")]


def test_documents_of_an_uploaded_file_are_found_by_a_query(gateway: Gateway, queue: WorkerFunction) -> None:
    request = {"filename": "a.jsonl", "content_type": "application/jsonl", "size": 1000}
    ticket = gateway.send("POST", UPLOADS, body=request).json
    body = b'{"id": "a", "text": "Berlin is a city."}\nno json\n'
    assert invoke(queue, messages(put(ticket["fields"]["key"], body))) == {"batchItemFailures": []}
    upload = gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}").json
    assert (upload["status"], upload["documents_ingested"], upload["documents_failed"]) == ("succeeded", 1, 1)
    assert [error["line"] for error in upload["errors"]] == [2]
    assert gateway.send("GET", UPLOADS).json["uploads"] == [upload]
    reply = gateway.send("POST", "/a1/rag/indices/books/query", body={"query": "Berlin is a city."}).json
    assert [hit["id"] for hit in reply["results"]] == ["a"]
    assert gateway.send("GET", f"{UPLOADS}/{ticket['upload_id']}", token="other-token").code == "upload_not_found"
    embedded = next(record for record in gateway.records() if record["route"] == "ingest")
    assert (embedded["token_id"], embedded["user"]) == ("demo-user", "ada")


def test_a_file_is_read_in_the_version_of_its_event(gateway: Gateway, queue: WorkerFunction) -> None:
    boto3.client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    first = put("uploads/demo/books/a.txt", b"Berlin is a city.")
    put("uploads/demo/books/a.txt", b"Rome is a city.")
    assert invoke(queue, messages(first)) == {"batchItemFailures": []}
    (document,) = gateway.send("GET", "/a1/rag/indices/books/documents").json["documents"]
    assert gateway.send("GET", f"/a1/rag/indices/books/documents/{quote(document['id'])}").json["text"] == "Berlin is a city."


def test_the_answer_lists_only_the_messages_that_the_queue_must_deliver_again(gateway: Gateway, queue: WorkerFunction) -> None:
    good, bad = (put(f"uploads/demo/{index}/a.txt", b"Text.") for index in ("good", "bad"))
    gateway.model.failure = BackendUnavailable("down")
    event = messages("no json", put("uploads/unknown/books/a.txt", b"Text."), good, put("uploads/demo/books/a.exe", b"MZ"), bad)
    assert invoke(queue, event) == {"batchItemFailures": [{"itemIdentifier": "m2"}, {"itemIdentifier": "m4"}]}
    gateway.model.failure = None
    assert invoke(queue, event) == {"batchItemFailures": []}
    assert gateway.send("GET", "/a1/rag/indices/good").json["doc_count"] == 1


def test_an_unexpected_error_fails_the_upload_and_the_worker_continues(
    gateway: Gateway, queue: WorkerFunction, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, good = (put(f"uploads/demo/{index}/a.txt", b"Text.") for index in ("broken", "good"))
    gateway.model.failure = ZeroDivisionError("secret")
    assert invoke(queue, messages(broken, receives=5)) == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    output = capsys.readouterr().out
    assert "job_failed" in output
    assert "ZeroDivisionError" in output
    assert "secret" not in output
    (upload,) = gateway.send("GET", "/a1/rag/indices/broken/uploads").json["uploads"]
    assert (upload["status"], upload["errors"][0]["code"]) == ("failed", "internal_error")
    gateway.model.failure = None
    assert invoke(queue, messages(good, broken)) == {"batchItemFailures": []}
    assert gateway.send("GET", "/a1/rag/indices/broken").json["doc_count"] == 1


def test_each_part_of_a_large_file_is_ingested_from_its_own_message(
    gateway: Gateway, queue: WorkerFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    outgoing_jobs: list[Job] = []

    async def send(_: object, job: Job) -> None:
        outgoing_jobs.append(job)

    monkeypatch.setattr("spass.aws.jobs.AwsJobs.send", send)
    change_settings(monkeypatch, small_bytes=20, part_bytes=20)
    body = b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'
    assert invoke(queue, messages(put("uploads/demo/books/a.jsonl", body))) == {"batchItemFailures": []}
    assert [job.part for job in outgoing_jobs if isinstance(job, IngestPart)] == [0, 1]
    assert invoke(queue, messages(*map(body_of, reversed(outgoing_jobs)))) == {"batchItemFailures": []}
    (upload,) = gateway.send("GET", UPLOADS).json["uploads"]
    assert (upload["status"], upload["documents_ingested"]) == ("succeeded", 2)
