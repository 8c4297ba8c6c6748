"""What messages of the queue mean, and where keys of the bucket point."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import IndexId, TenantId, UploadId
from spass.rag.ingest.events import IngestJob, MergeJob, ObjectPut, Unknown, jobs_of
from spass.rag.ingest.location import locate, upload_key
from tests.unit.rag.ingest.stage import put_event

UPLOAD = UploadId("upl_01k9s3f5k2abcdefghjkmnpqrs")


def test_an_event_names_the_object_by_its_key_unescaped_and_its_version() -> None:
    (job,) = jobs_of(put_event("uploads/t/books/große Datei+1.md", "v1"))
    assert job == ObjectPut("uploads/t/books/große Datei+1.md", "v1", "v1", size=1)


@pytest.mark.parametrize("version", [None, "null", ""])
def test_an_object_without_a_version_is_told_by_the_events_order(version: str | None) -> None:
    (job,) = jobs_of(put_event("uploads/t/books/a.md", version, "tag"))
    assert job == ObjectPut("uploads/t/books/a.md", None, "00tag", size=1)


@given(st.text("0123456789ABCDEF", min_size=1, max_size=20), st.text("0123456789ABCDEF", min_size=1, max_size=20))
def test_sequencers_compare_as_strings_once_the_shorter_is_filled_with_zeros_on_the_right(one: str, other: str) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html"""
    length = max(len(one), len(other))
    first, second = (one.ljust(length, "0"), other.ljust(length, "0"))
    assert (_sequencer(one) < _sequencer(other)) == (first < second)
    assert (_sequencer(one) == _sequencer(other)) == (first == second)
    assert _sequencer(one) == _sequencer(one.lower())


@pytest.mark.parametrize("sequencer", ["no hex", "0x1", "1" * 65, "-1"])
def test_what_is_no_sequencer_orders_nothing(sequencer: str) -> None:
    assert _sequencer(sequencer) == ""


def _sequencer(sequencer: str) -> str:
    (job,) = jobs_of(put_event("uploads/t/books/a.md", "v", sequencer=sequencer))
    assert isinstance(job, ObjectPut)
    return job.sequencer


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
def test_a_folder_of_the_console_is_a_key_with_a_slash_at_its_end_and_nothing_in_it(key: str, size: int, folder: bool) -> None:
    (job,) = jobs_of(put_event(key, "v", size=size))
    assert isinstance(job, ObjectPut)
    assert job.is_folder is folder


def test_a_message_may_hold_several_events() -> None:
    records = [json.loads(put_event(f"uploads/t/books/{n}.md", "v"))["Records"][0] for n in range(3)]
    jobs = jobs_of(json.dumps({"Records": records}))
    assert [job.key for job in jobs if isinstance(job, ObjectPut)] == [f"uploads/t/books/{n}.md" for n in range(3)]


def test_what_our_own_functions_ask_for_is_understood() -> None:
    assert jobs_of('{"job": "merge", "tenant": "t", "index": "i"}') == [MergeJob(TenantId("t"), IndexId("i"))]
    asked = {"job": "ingest", "tenant": "t", "index": "i", "upload": UPLOAD}
    assert jobs_of(json.dumps(asked)) == [IngestJob(TenantId("t"), IndexId("i"), UPLOAD)]


def test_the_buckets_greeting_asks_for_nothing() -> None:
    assert jobs_of('{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "spass"}') == []


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
def test_what_nobody_understands_is_said_to_be_unknown_and_raises_nothing(body: str) -> None:
    (job,) = jobs_of(body)
    assert isinstance(job, Unknown)


@given(st.text())
def test_no_body_whatever_raises(body: str) -> None:
    assert all(isinstance(job, Unknown) for job in jobs_of(body))


def test_a_key_leads_to_tenant_index_and_file() -> None:
    form = locate(f"uploads/t/{upload_key(IndexId('books'), UPLOAD, 'a.md')}")
    assert form is not None
    assert (form.tenant, form.index, form.upload, form.filename) == ("t", "books", UPLOAD, "a.md")
    free = locate("uploads/t/books/2026/may/a.md")
    assert free is not None
    assert (free.key, free.upload, free.filename) == ("books/2026/may/a.md", None, "2026/may/a.md")
    deep = locate(f"uploads/t/books/{UPLOAD}/b/a.md")
    assert deep is not None
    assert (deep.upload, deep.filename) == (None, f"{UPLOAD}/b/a.md")


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
def test_a_key_without_a_tenant_or_an_index_leads_nowhere(key: str) -> None:
    assert locate(key) is None


def test_every_revision_of_a_key_has_an_upload_of_its_own() -> None:
    places = [locate(f"uploads/t/books/{name}.md") for name in ("a", "b")]
    found = {place.upload_of(revision) for place in places if place for revision in ("", "v1", "v2")}
    assert len(found) == 6
    assert all(len(upload) == len(UPLOAD) and upload < UPLOAD for upload in found)
