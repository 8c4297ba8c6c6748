"""Create upload forms (``UploadTicket``) with which a client sends a file to S3, and list the uploads of a tenant."""

import json
from base64 import b64decode
from dataclasses import replace

import httpx
import pytest

from spass.calls.scope import Scope
from spass.core.errors import EmbeddingModelMismatch, InvalidRequest, ModelNotAllowed, UploadNotFound
from spass.core.ids import IndexId, TenantId, UploadId
from spass.rag.index.documents import NewDocument
from spass.tenancy.config import ModelConfig
from tests.unit.rag.ingest.harness import INDEX, Calls, IngestHarness, config_with, jsonl_file, numbered_texts

pytestmark = pytest.mark.anyio


async def test_a_form_contains_the_object_key_and_limits_the_size(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "große Datei.md", "text/markdown", 1000)
    assert ticket.upload_id.startswith("upl_")
    assert ticket.fields["key"] == f"uploads/{harness.tenant}/{INDEX}/{ticket.upload_id}/große Datei.md"
    assert ticket.fields["Content-Type"] == "text/markdown"
    policy = json.loads(b64decode(ticket.fields["policy"]))
    assert ["content-length-range", 0, 1000] in policy["conditions"]
    assert httpx.URL(ticket.url).scheme == "https"
    assert ticket.expires_at.endswith("Z")


async def test_an_upload_waits_for_its_file(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.md", "text/markdown", 1000)
    assert (await harness.uploads.get(harness.scope, INDEX, ticket.upload_id)).to_dict() == {
        "id": ticket.upload_id,
        "filename": "a.md",
        "status": "waiting",
        "bytes_done": 0,
        "bytes_total": 1000,
        "documents_ingested": 0,
        "documents_failed": 0,
        "errors": [],
    }


async def test_a_file_sent_with_a_form_becomes_the_upload_of_that_form(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    body = jsonl_file(numbered_texts(3))
    assert await harness.deliver(harness.put(f"{INDEX}/{ticket.upload_id}/a.jsonl", body))
    assert (await harness.only_upload()).to_dict() == {
        "id": ticket.upload_id,
        "filename": "a.jsonl",
        "status": "succeeded",
        "bytes_done": len(body),
        "bytes_total": len(body),
        "documents_ingested": 3,
        "documents_failed": 0,
        "errors": [],
    }


async def test_a_form_that_is_used_twice_creates_two_uploads(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    path = f"{INDEX}/{ticket.upload_id}/a.jsonl"
    events = [harness.put(path, jsonl_file(numbered_texts(3, text))) for text in ("first", "second")]
    for event in (*events, *events):
        assert await harness.deliver(event)
    page = await harness.uploads.list(harness.scope, INDEX)
    assert [(upload.filename, upload.status, upload.documents_ingested) for upload in page.uploads] == [
        ("a.jsonl", "succeeded", 3)
    ] * 2
    assert page.uploads[0].id == ticket.upload_id
    assert await harness.texts() == numbered_texts(3, "second")


async def test_embedding_calls_carry_the_caller_that_created_the_form(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    await harness.deliver(harness.put(f"{INDEX}/{ticket.upload_id}/a.jsonl", jsonl_file(numbered_texts(1))))
    (scope,) = harness.calls.scopes
    assert (scope.caller.request_id, scope.caller.user, scope.caller.route) == ("req_form", "anna", "ingest")


@pytest.mark.parametrize(
    "filename",
    [
        "",
        "a",
        "a.exe",
        "a.md.zip",
        "a\ud800.md",
        "a\x85.md",
        "../a.md",
        "b/a.md",
        "/a.md",
        "b\\a.md",
        "a\n.md",
        "a\x00.md",
        "a\x7f.md",
        "${filename}.md",
        f"{'a' * 253}.md",
        f"{'😀' * 200}.md",
    ],
)
async def test_no_form_is_created_for_a_file_that_cannot_be_ingested(harness: IngestHarness, filename: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        await harness.uploads.create(harness.scope, INDEX, filename, "text/plain", 10)
    assert error.value.param == "filename"
    assert not (await harness.uploads.list(harness.scope, INDEX)).uploads


@pytest.mark.parametrize("size", [0, -1, 5 * 1024**3 + 1])
async def test_no_form_is_created_for_an_empty_or_too_large_file(harness: IngestHarness, size: int) -> None:
    with pytest.raises(InvalidRequest) as error:
        await harness.uploads.create(harness.scope, INDEX, "a.md", "text/plain", size)
    assert error.value.param == "size"


@pytest.mark.parametrize("filename", ["A.MD", "a.b.csv", "große Datei.txt", f"{'a' * 249}.jsonl", f"{'中' * 249}.jsonl", "..md"])
async def test_every_valid_name_gets_a_form(harness: IngestHarness, filename: str) -> None:
    ticket = await harness.uploads.create(harness.scope, IndexId("i" * 128), filename, "text/plain", 5 * 1024**3)
    assert len(ticket.fields["key"].encode()) <= 1024


async def test_no_form_is_created_for_an_index_with_another_embedding_model(harness: IngestHarness) -> None:
    await harness.rag.writer.append(harness.scope, INDEX, [NewDocument(id="a", text="a")])
    harness.calls = Calls(config_with("another"))
    with pytest.raises(EmbeddingModelMismatch):
        await harness.uploads.create(harness.scope, INDEX, "a.md", "text/plain", 10)


async def test_no_form_is_created_for_a_token_that_may_not_embed(harness: IngestHarness) -> None:
    class ForbiddenModelCalls(Calls):
        def embedding_model(self, scope: Scope) -> ModelConfig:
            raise ModelNotAllowed("no")

    harness.calls = ForbiddenModelCalls()
    with pytest.raises(ModelNotAllowed):
        await harness.uploads.create(harness.scope, INDEX, "a.md", "text/plain", 10)


async def test_uploads_are_listed_newest_first_page_by_page(harness: IngestHarness) -> None:
    ids = [(await harness.uploads.create(harness.scope, INDEX, f"{n}.md", "text/plain", 10)).upload_id for n in range(5)]
    await harness.deliver(harness.put(f"{INDEX}/operators.jsonl", jsonl_file(numbered_texts(1))))
    cursor, names = None, []
    while True:
        page = await harness.uploads.list(harness.scope, INDEX, cursor, 2)
        names.append([upload.filename for upload in page.uploads])
        cursor = page.next_cursor
        if cursor is None:
            break
    # Several ids can be of the same millisecond, so the newest is the one with the greatest id.
    # Uploads without a form come after all uploads with a form.
    newest_first = [f"{ids.index(upload)}.md" for upload in sorted(ids, reverse=True)]
    assert names == [newest_first[:2], newest_first[2:4], [newest_first[4], "operators.jsonl"]]


async def test_a_page_of_uploads_with_many_errors_ends_before_it_is_too_large(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.core.paging.PAGE_BYTES", 50_000)
    for number in range(6):
        await harness.deliver(harness.put(f"{INDEX}/{number}.jsonl", b"no json\n" * 100))
    cursor, pages = None, []
    while True:
        page = await harness.uploads.list(harness.scope, INDEX, cursor)
        pages.append(len(page.uploads))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sum(pages) == 6
    assert len(pages) > 1


async def test_an_upload_is_visible_only_to_its_tenant_and_index(harness: IngestHarness) -> None:
    ticket = await harness.uploads.create(harness.scope, INDEX, "a.md", "text/plain", 10)
    other = replace(harness, tenant=TenantId("other"))
    for scope, index in ((other.scope, INDEX), (harness.scope, IndexId("other"))):
        assert not (await harness.uploads.list(scope, index)).uploads
        with pytest.raises(UploadNotFound):
            await harness.uploads.get(scope, index, ticket.upload_id)
    with pytest.raises(UploadNotFound):
        await harness.uploads.get(harness.scope, INDEX, UploadId("upl_00"))
    await harness.uploads.create(harness.scope, INDEX, "b.md", "text/plain", 10)
    cursor = (await harness.uploads.list(harness.scope, INDEX, None, 1)).next_cursor
    with pytest.raises(InvalidRequest):
        await harness.uploads.list(other.scope, INDEX, cursor, 1)
