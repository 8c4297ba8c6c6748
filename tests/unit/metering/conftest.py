"""Provide a table and a queue for each test."""

import pytest

from spass.store.tenant_store import TenantStore
from tests.unit.metering.ledger import LedgerHarness


@pytest.fixture
def ledger() -> LedgerHarness:
    return LedgerHarness.create()


@pytest.fixture
def store(ledger: LedgerHarness) -> TenantStore:
    return ledger.store
