"""Browsers of the laptop's page may post uploads to the emulated bucket, also in a home that an earlier release created."""

import asyncio
import json
import os
from collections.abc import Iterator

import boto3
import httpx
import pytest

from local.emulator import TEMPLATE
from local.home import Home
from spass.aws.clients import Aws
from spass.aws.upload_origin import upload_origin
from spass.core.ids import TenantId
from spass.store.bucket import PresignedPost
from tests.integration.local.emulated_laptop import PAGE_ORIGIN, running


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the bucket of an emulator that an earlier release has set up, without the rule, and this one has updated."""
    folder = tmp_path_factory.mktemp("laptop")
    earlier = folder / "earlier.json"
    template = json.loads(TEMPLATE.read_text())
    (stored,) = [one for one in template["Resources"].values() if one["Type"] == "AWS::S3::Bucket"]
    assert stored["Properties"].pop("CorsConfiguration")
    earlier.write_text(json.dumps(template))
    with running(Home(folder / "home"), {}, earlier) as laptop:
        before = laptop.stores
        boto3.client("s3").put_object(Bucket=before.bucket, Key="T/kept", Body=b"kept")
    with running(Home(folder / "home"), {}) as laptop:
        assert laptop.stores == before
        yield before.bucket


def form_of(bucket: str) -> PresignedPost:
    store = Aws(table="unused", bucket=bucket).for_tenant(TenantId("demo"))
    return asyncio.run(store.uploads.presign("notes/upl_1/a.md", size=10, content_type="text/markdown", seconds=60))


def test_the_updated_bucket_keeps_its_objects(bucket: str) -> None:
    assert boto3.client("s3").get_object(Bucket=bucket, Key="T/kept")["Body"].read() == b"kept"


def test_a_browser_may_post_a_form_from_the_pages_origin(bucket: str) -> None:
    form = form_of(bucket)
    asked = {"Origin": PAGE_ORIGIN, "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(form.url, headers=asked, trust_env=False)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE_ORIGIN
    assert preflight.headers["access-control-allow-methods"] == "POST"
    posted = httpx.post(
        form.url, data=dict(form.fields), files={"file": ("a.md", b"hello")}, headers={"Origin": PAGE_ORIGIN}, trust_env=False
    )
    assert posted.is_success
    assert posted.headers["access-control-allow-origin"] == PAGE_ORIGIN
    assert boto3.client("s3").get_object(Bucket=bucket, Key=form.fields["key"])["Body"].read() == b"hello"


def test_the_policy_of_the_page_names_the_emulators_origin(bucket: str) -> None:
    origin = upload_origin(os.environ)
    assert origin is not None
    assert form_of(bucket).url.startswith(f"{origin}/")
