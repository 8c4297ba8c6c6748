"""Provide a store for each test."""

import pytest

from spass.core.ids import TenantId
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws


@pytest.fixture
def aws() -> MemoryAws:
    return MemoryAws()


@pytest.fixture
def store(aws: MemoryAws) -> TenantStore:
    return aws.for_tenant(TenantId("acme"))
