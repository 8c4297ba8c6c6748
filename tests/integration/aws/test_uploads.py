"""Upload files with presigned forms to an emulated bucket, and read them as the tenant's workers do."""

import asyncio

import httpx
import pytest

from spass.aws import bucket
from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.core.time import now_s
from spass.store.bucket import ObjectMissing, PresignedPost
from spass.store.tenant_store import TenantStore

pytestmark = pytest.mark.anyio
KEY = "berlin/upl_1/über uns.md"


def post(form: PresignedPost, body: bytes) -> httpx.Response:
    return httpx.post(form.url, data=dict(form.fields), files={"file": ("anything", body)}, trust_env=False)


@pytest.fixture
async def form(store: TenantStore) -> PresignedPost:
    return await store.uploads.presign(KEY, size=11, content_type="text/markdown", seconds=60)


async def test_a_form_uploads_its_file(store: TenantStore, form: PresignedPost) -> None:
    assert form.fields["key"] == f"uploads/{store.tenant}/{KEY}"
    assert 0 <= form.expires_at - now_s() <= 60
    assert post(form, b"hello world").is_success
    assert (await store.uploads.head(KEY)).size == 11
    assert b"".join([block async for block in store.uploads.blocks(KEY, None, 0, 11)]) == b"hello world"


async def test_a_form_refuses_a_larger_file(store: TenantStore, form: PresignedPost) -> None:
    assert post(form, b"hello world!").is_client_error
    with pytest.raises(ObjectMissing):
        await store.uploads.head(KEY)


async def test_a_form_refuses_another_key(store: TenantStore, form: PresignedPost) -> None:
    other = PresignedPost(form.url, {**form.fields, "key": "uploads/other/berlin/upl_1/x.md"}, form.expires_at)
    assert post(other, b"hello").is_client_error


async def test_a_file_is_read_in_blocks_from_any_offset(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "BLOCK_BYTES", 4)
    post(await store.uploads.presign("i/f.txt", size=99, content_type="text/plain", seconds=60), b"0123456789abcdef")
    assert [block async for block in store.uploads.blocks("i/f.txt", None, 3, 13)] == [b"3456", b"789a", b"bc"]
    assert [block async for block in store.uploads.blocks("i/f.txt", None, 5, 5)] == []


async def test_no_task_is_pending_after_the_reader_stops(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "BLOCK_BYTES", 4)
    post(await store.uploads.presign("i/f.txt", size=99, content_type="text/plain", seconds=60), b"0123456789abcdef")
    before = asyncio.all_tasks()
    blocks = store.uploads.blocks("i/f.txt", None, 0, 16)
    async for block in blocks:
        assert block == b"0123"
        break
    await blocks.aclose()
    assert asyncio.all_tasks() == before


async def test_a_tenant_does_not_see_the_files_of_another(aws: Aws, store: TenantStore, form: PresignedPost) -> None:
    post(form, b"hello world")
    with pytest.raises(ObjectMissing):
        await aws.for_tenant(TenantId("other")).uploads.head(KEY)


async def test_one_version_can_be_read_and_deleted(store: TenantStore, emulator_versions: None) -> None:
    form = await store.uploads.presign("i/v.txt", size=99, content_type="text/plain", seconds=60)
    post(form, b"first")
    first = await store.uploads.head("i/v.txt")
    post(form, b"second!")
    second = await store.uploads.head("i/v.txt")
    assert first.version != second.version
    assert [block async for block in store.uploads.blocks("i/v.txt", first.version, 0, 5)] == [b"first"]
    assert [block async for block in store.uploads.blocks("i/v.txt", first.version, 1, 4)] == [b"irs"]
    await store.uploads.delete("i/v.txt", first.version)
    with pytest.raises(ObjectMissing):
        await store.uploads.head("i/v.txt", first.version)
    assert (await store.uploads.head("i/v.txt")).size == 7


@pytest.fixture
def emulator_versions(aws: Aws) -> None:
    aws._s3.put_bucket_versioning(Bucket=aws._bucket, VersioningConfiguration={"Status": "Enabled"})
