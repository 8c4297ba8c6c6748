"""Parsing of the queue's messages and of keys in the bucket."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import IndexId, JobId, TenantId, UploadId
from spass.core.jobs import AccountCall, IngestPart, IngestUpload, Job, MergeSegments, StartCompaction, body_of
from spass.jobs.dispatch import Unknown, parse
from spass.rag.ingest.uploaded_file import UploadedFile, form_key, uploaded_file
from tests.unit.rag.ingest.harness import put_event

UPLOAD = UploadId("upl_01k9s3f5k2abcdefghjkmnpqrs")


TENANT, BOOKS = TenantId("t"), IndexId("books")


def file_of(body: str) -> UploadedFile:
    (task,) = parse(body)
    assert isinstance(task, UploadedFile)
    return task


def locate(key: str) -> UploadedFile | None:
    return uploaded_file(key, None, "")


def test_an_event_becomes_a_file_with_the_unescaped_key_and_the_version() -> None:
    file = file_of(put_event("uploads/t/books/große Datei+1.md", "v1", sequencer="-"))
    assert file == UploadedFile(TENANT, BOOKS, "books/große Datei+1.md", None, "große Datei+1.md", "v1", "v1")


@pytest.mark.parametrize("version", [None, "null", ""])
def test_an_object_without_a_version_is_identified_by_its_sequencer(version: str | None) -> None:
    file = file_of(put_event("uploads/t/books/a.md", version, "tag"))
    assert (file.version, file.revision) == (None, "00tag")


@given(st.text("0123456789ABCDEF", min_size=1, max_size=20), st.text("0123456789ABCDEF", min_size=1, max_size=20))
def test_padded_sequencers_compare_as_strings(one: str, other: str) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html"""
    length = max(len(one), len(other))
    first, second = (one.ljust(length, "0"), other.ljust(length, "0"))
    assert (_sequencer(one) < _sequencer(other)) == (first < second)
    assert (_sequencer(one) == _sequencer(other)) == (first == second)
    assert _sequencer(one) == _sequencer(one.lower())


@pytest.mark.parametrize("sequencer", ["no hex", "0x1", "1" * 65, "-1"])
def test_a_malformed_sequencer_becomes_empty(sequencer: str) -> None:
    assert _sequencer(sequencer) == ""


def _sequencer(sequencer: str) -> str:
    return file_of(put_event("uploads/t/books/a.md", "v", sequencer=sequencer)).sequencer


@pytest.mark.parametrize(
    ("key", "size", "folder"),
    [
        ("uploads/t/books/", 0, True),
        ("uploads/t/books/2026/", 0, True),
        ("uploads/t/", 0, True),
        ("uploads/t/books/2026/", 1, False),
        ("uploads/t/books/a.md", 0, False),
    ],
)
def test_an_empty_object_whose_key_ends_in_a_slash_is_skipped(key: str, size: int, folder: bool) -> None:
    assert (parse(put_event(key, "v", size=size)) == []) is folder


def test_a_message_can_contain_several_events() -> None:
    records = [json.loads(put_event(f"uploads/t/books/{n}.md", "v"))["Records"][0] for n in range(3)]
    files = parse(json.dumps({"Records": records}))
    assert [f"uploads/t/{file.key}" for file in files if isinstance(file, UploadedFile)] == [
        f"uploads/t/books/{n}.md" for n in range(3)
    ]


@pytest.mark.parametrize(
    "job",
    [
        MergeSegments(TENANT, BOOKS),
        IngestUpload(TENANT, BOOKS, UPLOAD),
        IngestPart(TENANT, BOOKS, UPLOAD, 7),
        AccountCall(TENANT, {"request_id": "req_1", "input_tokens": 7, "usage_estimated": True}),
        StartCompaction(TENANT, JobId("job_" + "0" * 26)),
    ],
    ids=lambda job: type(job).__name__,
)
def test_parsing_is_the_inverse_of_writing_a_job(job: Job) -> None:
    assert parse(body_of(job)) == [job]


def test_the_documented_body_of_an_ingest_job_is_parsed() -> None:
    body = {"job": "ingest", "tenant": "t", "index": "books", "upload": UPLOAD}
    assert parse(json.dumps(body)) == [IngestUpload(TENANT, BOOKS, UPLOAD)]


def test_the_test_event_of_the_bucket_has_no_task() -> None:
    assert parse('{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "spass"}') == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no json",
        "[]",
        "17",
        "null",
        "{}",
        '{"Records": "x"}',
        '{"job": "dance"}',
        '{"job": "merge", "tenant": 1, "index": "i"}',
        '{"Records": [17]}',
        '{"Records": [{"eventName": "ObjectCreated:Put", "s3": {}}]}',
        "�",
        "[" * 100000,
        put_event("uploads/t/books/a.md", "v", name="ObjectRemoved:Delete"),
    ],
)
def test_a_malformed_message_becomes_unknown(body: str) -> None:
    (task,) = parse(body)
    assert isinstance(task, Unknown)


@given(st.text())
def test_parsing_never_raises(body: str) -> None:
    assert all(isinstance(task, Unknown) for task in parse(body))


def test_a_key_names_tenant_index_and_file() -> None:
    form = locate(f"uploads/t/{form_key(IndexId('books'), UPLOAD, 'a.md')}")
    assert form is not None
    assert (form.tenant, form.index, form.form_upload, form.filename) == ("t", "books", UPLOAD, "a.md")
    free = locate("uploads/t/books/2026/may/a.md")
    assert free is not None
    assert (free.key, free.form_upload, free.filename) == ("books/2026/may/a.md", None, "2026/may/a.md")
    deep = locate(f"uploads/t/books/{UPLOAD}/b/a.md")
    assert deep is not None
    assert (deep.form_upload, deep.filename) == (None, f"{UPLOAD}/b/a.md")


@pytest.mark.parametrize("key", ["uploads/t/books/", "uploads/t/books/2026/"])
def test_a_folder_has_no_filename(key: str) -> None:
    location = locate(key)
    assert location is not None
    assert location.filename == ""


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a.md",
        "uploads/",
        "uploads//books/a.md",
        "uploads/t/a.md",
        "uploads/t//a.md",
        "uploads/t/-books/a.md",
        "uploads/t/b#x/a.md",
        "uploads/t/../a.md",
        "uploads/t/books\n/a.md",
        f"uploads/t/{'b' * 129}/a.md",
        "T/t/rag/books/x",
        "uploads/t",
    ],
)
def test_a_key_without_a_tenant_or_an_index_is_not_a_file(key: str) -> None:
    assert locate(key) is None


def test_every_revision_of_a_key_has_its_own_upload() -> None:
    files = [uploaded_file(f"uploads/t/books/{name}.md", None, revision) for name in "ab" for revision in ("", "v1", "v2")]
    found = {file.own_upload for file in files if file}
    assert len(found) == 6
    assert all(len(upload) == len(UPLOAD) and upload < UPLOAD for upload in found)
