"""A store for each test."""

from collections.abc import Iterator

import pytest

from spass.aws.clients import Aws, TenantStore
from spass.core.ids import TenantId
from tests.unit.calls.scripted_provider import emulated_table, memory_store


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("acme"))


@pytest.fixture
def emulated_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TenantStore]:
    """One beside which a test may make other clients of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with emulated_table():
        yield Aws(table="spass", bucket="spass").for_tenant(TenantId("acme"))
