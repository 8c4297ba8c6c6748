"""A form for a file, and what its tenant sees of the upload."""

from collections.abc import Sequence
from dataclasses import asdict

import httpx
import pytest

from spass.aws.clients import Aws
from spass.aws.faults import Crash
from spass.core.errors import EmbeddingModelMismatch, InvalidRequest, ModelNotAllowed, UploadNotFound
from spass.core.ids import IndexId, UploadId
from spass.core.time import Deadline, now_s
from spass.rag.documents import NewDocument
from spass.rag.ingest.uploads import abandon_stale
from tests.unit.rag.ingest.stage import INDEX, Calls, Stage, config_with, file_of, numbered

pytestmark = pytest.mark.anyio


async def test_a_form_names_the_key_and_the_size_it_is_good_for(stage: Stage) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "große Datei.md", "text/markdown", 1000)
    assert ticket.upload_id.startswith("upl_")
    assert ticket.fields["key"] == f"uploads/{stage.tenant}/{INDEX}/{ticket.upload_id}/große Datei.md"
    assert ticket.fields["Content-Type"] == "text/markdown"
    assert {"policy", "x-amz-signature"} <= {name.lower() for name in ticket.fields}
    assert httpx.URL(ticket.url).scheme == "https"
    assert ticket.expires_at.endswith("Z")


async def test_an_upload_waits_for_its_file(stage: Stage) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "a.md", "text/markdown", 1000)
    assert asdict(await stage.uploads.get(stage.scope, INDEX, ticket.upload_id)) == {
        "id": ticket.upload_id,
        "filename": "a.md",
        "status": "waiting",
        "bytes_done": 0,
        "bytes_total": 1000,
        "documents_ingested": 0,
        "documents_failed": 0,
        "errors": (),
    }


async def test_the_file_of_a_form_is_ingested_as_its_upload(stage: Stage) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    body = file_of(numbered(3))
    assert await stage.deliver(stage.put(f"{INDEX}/{ticket.upload_id}/a.jsonl", body))
    assert asdict(await stage.only_upload()) == {
        "id": ticket.upload_id,
        "filename": "a.jsonl",
        "status": "succeeded",
        "bytes_done": len(body),
        "bytes_total": len(body),
        "documents_ingested": 3,
        "documents_failed": 0,
        "errors": (),
    }


async def test_a_form_that_is_used_twice_makes_two_uploads(stage: Stage) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    path = f"{INDEX}/{ticket.upload_id}/a.jsonl"
    events = [stage.put(path, file_of(numbered(3, text))) for text in ("first", "second")]
    for event in (*events, *events):
        assert await stage.deliver(event)
    page = await stage.uploads.list(stage.scope, INDEX)
    assert [(upload.filename, upload.status, upload.documents_ingested) for upload in page.uploads] == [
        ("a.jsonl", "succeeded", 3)
    ] * 2
    assert page.uploads[0].id == ticket.upload_id
    assert await stage.texts() == numbered(3, "second")


async def test_embedding_is_recorded_under_the_request_that_asked_for_the_form(stage: Stage) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "a.jsonl", "application/jsonl", 1000)
    await stage.deliver(stage.put(f"{INDEX}/{ticket.upload_id}/a.jsonl", file_of(numbered(1))))
    (scope,) = stage.calls.scopes
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
async def test_a_file_that_cannot_be_ingested_gets_no_form(stage: Stage, filename: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await stage.uploads.create(stage.scope, INDEX, filename, "text/plain", 10)
    assert refused.value.param == "filename"
    assert not (await stage.uploads.list(stage.scope, INDEX)).uploads


@pytest.mark.parametrize("size", [0, -1, 5 * 1024**3 + 1])
async def test_a_file_of_no_size_or_too_much_gets_no_form(stage: Stage, size: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await stage.uploads.create(stage.scope, INDEX, "a.md", "text/plain", size)
    assert refused.value.param == "size"


@pytest.mark.parametrize("filename", ["A.MD", "a.b.csv", "große Datei.txt", f"{'a' * 249}.jsonl", f"{'中' * 249}.jsonl", "..md"])
async def test_every_name_that_says_its_kind_gets_a_form(stage: Stage, filename: str) -> None:
    ticket = await stage.uploads.create(stage.scope, IndexId("i" * 128), filename, "text/plain", 5 * 1024**3)
    assert len(ticket.fields["key"].encode()) <= 1024


async def test_an_index_of_another_model_gets_no_form(stage: Stage) -> None:
    await stage.rag.append(stage.scope, INDEX, [NewDocument(id="a", text="a")])
    stage.calls = Calls(config_with("another"))
    with pytest.raises(EmbeddingModelMismatch):
        await stage.uploads.create(stage.scope, INDEX, "a.md", "text/plain", 10)


async def test_a_token_that_may_not_embed_gets_no_form(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ModelNotAllowed("no")

    monkeypatch.setattr(Calls, "embedding_model", refuse)
    with pytest.raises(ModelNotAllowed):
        await stage.uploads.create(stage.scope, INDEX, "a.md", "text/plain", 10)


async def test_uploads_are_listed_newest_first_page_by_page(stage: Stage) -> None:
    made = [(await stage.uploads.create(stage.scope, INDEX, f"{n}.md", "text/plain", 10)).upload_id for n in range(5)]
    await stage.deliver(stage.put(f"{INDEX}/operators.jsonl", file_of(numbered(1))))
    cursor, names = None, []
    while True:
        page = await stage.uploads.list(stage.scope, INDEX, cursor, 2)
        names.append([upload.filename for upload in page.uploads])
        cursor = page.next_cursor
        if cursor is None:
            break
    by_id = [f"{made.index(upload)}.md" for upload in sorted(made, reverse=True)]
    assert names == [by_id[:2], by_id[2:4], [by_id[4], "operators.jsonl"]]


async def test_a_page_of_uploads_with_many_errors_ends_before_it_is_too_large(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.core.pages.PAGE_BYTES", 50_000)
    for number in range(6):
        await stage.deliver(stage.put(f"{INDEX}/{number}.jsonl", b"no json\n" * 100))
    cursor, pages = None, []
    while True:
        page = await stage.uploads.list(stage.scope, INDEX, cursor)
        pages.append(len(page.uploads))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sum(pages) == 6
    assert len(pages) > 1


async def test_an_upload_is_found_by_its_own_tenant_and_index_only(stage: Stage, aws: Aws) -> None:
    ticket = await stage.uploads.create(stage.scope, INDEX, "a.md", "text/plain", 10)
    other = Stage(aws)
    for scope, index in ((other.scope, INDEX), (stage.scope, IndexId("other"))):
        assert not (await stage.uploads.list(scope, index)).uploads
        with pytest.raises(UploadNotFound):
            await stage.uploads.get(scope, index, ticket.upload_id)
    with pytest.raises(UploadNotFound):
        await stage.uploads.get(stage.scope, INDEX, UploadId("upl_00"))
    await stage.uploads.create(stage.scope, INDEX, "b.md", "text/plain", 10)
    cursor = (await stage.uploads.list(stage.scope, INDEX, None, 1)).next_cursor
    with pytest.raises(InvalidRequest):
        await stage.uploads.list(other.scope, INDEX, cursor, 1)


@pytest.mark.parametrize(("status", "patience"), [("running", 2 * 3600), ("queued", 4 * 24 * 3600)])
async def test_work_that_stopped_without_an_end_is_failed(
    stage: Stage, small_batches: int, monkeypatch: pytest.MonkeyPatch, status: str, patience: int
) -> None:
    """In two hours; but what waits for a worker, behind however many others, waits for as long as the queue keeps its message."""
    event = stage.put(f"{INDEX}/a.jsonl", file_of(numbered(9)))
    if status == "queued":
        assert await stage.deliver(event, seconds=1), "handed over to nobody"
    else:

        def die(texts: Sequence[str]) -> None:
            if "text 4" in texts:
                raise Crash

        stage.calls.before = die
        with pytest.raises(Crash):
            await stage.deliver(event)
        stage.calls.before = lambda _: None
    assert (await stage.only_upload()).status == status
    later = now_s() + patience - 60
    assert await abandon_stale(stage.store, later, Deadline.after(10)) == 0
    later += 240
    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.uploads.now_s", lambda: later)
        seen = await stage.only_upload()
    assert await abandon_stale(stage.store, later, Deadline.after(10)) == 1
    assert await abandon_stale(stage.store, later, Deadline.after(10)) == 0
    stored = await stage.only_upload()
    assert seen == stored
    assert (stored.status, stored.errors[0].code, stored.documents_ingested) == ("failed", "abandoned", small_batches)
    assert await stage.deliver(event), "whoever is told to goes on"
    assert (await stage.only_upload()).status == "succeeded"
    assert await stage.texts() == numbered(9)
