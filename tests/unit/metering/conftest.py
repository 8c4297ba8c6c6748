"""A table and a queue for each test."""

from collections.abc import Iterator

import pytest

from spass.aws.clients import TenantStore
from tests.unit.calls.scripted_provider import emulated_table
from tests.unit.metering.ledger import LedgerHarness


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerHarness]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with emulated_table():
        yield LedgerHarness.opened()


@pytest.fixture
def store(ledger: LedgerHarness) -> TenantStore:
    return ledger.store
