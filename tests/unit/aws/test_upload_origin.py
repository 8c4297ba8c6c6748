"""The policy of the page names the origin to which boto3 posts uploads, in every region and partition."""

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import boto3
import pytest

from spass.aws.clients import Aws
from spass.aws.upload_origin import upload_origin
from spass.core.ids import TenantId

SESSION = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="eu-central-1")


def _regions() -> Iterator[str]:
    for partition in SESSION.get_available_partitions():
        yield from SESSION.get_available_regions("s3", partition)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


def signed_url(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> str:
    """Return the address of a form that the gateway signs with this environment."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = Aws(table="table", bucket=variables["SPASS_BUCKET"]).for_tenant(TenantId("acme"))
    return asyncio.run(store.uploads.presign("i/a.md", size=10, content_type="text/markdown", seconds=60)).url


@pytest.mark.parametrize("region", sorted({*_regions(), "us-east-1", "cn-north-1", "us-gov-west-1", "eusc-de-east-1"}))
def test_the_origin_is_the_regional_host_of_the_bucket(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    variables = {"AWS_DEFAULT_REGION": region, "SPASS_BUCKET": "spass-dev-data-objects-1x2y3z"}
    origin = upload_origin(variables)
    assert signed_url(monkeypatch, variables) == f"{origin}/"
    assert origin is not None
    assert origin.startswith(f"https://spass-dev-data-objects-1x2y3z.s3.{region}.")


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "cn-north-1"])
def test_a_bucket_with_dots_is_named_by_its_exact_path(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    variables = {"AWS_DEFAULT_REGION": region, "SPASS_BUCKET": "spass.example.com"}
    assert signed_url(monkeypatch, variables) == upload_origin(variables)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("bucket", ["spass-local", "spass.local"])
def test_at_an_emulator_the_origin_is_the_emulators(monkeypatch: pytest.MonkeyPatch, variable: str, bucket: str) -> None:
    for endpoint in ("http://127.0.0.1:4566", "http://localhost:4566", "https://emulator.test"):
        variables = {"AWS_DEFAULT_REGION": "eu-central-1", "SPASS_BUCKET": bucket, variable: endpoint}
        url = urlsplit(signed_url(monkeypatch, variables))
        assert f"{url.scheme}://{url.netloc}" == upload_origin(variables) == endpoint


def test_without_a_region_nothing_is_signed_and_there_is_no_origin() -> None:
    assert upload_origin({"SPASS_BUCKET": "uploads"}) is None
