"""Fixtures for the tests of completions."""

import pytest

from spass.core.ids import TenantId
from spass.store.tenant_store import TenantStore
from tests.unit.calls.scripted_provider import memory_store


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("acme"))
