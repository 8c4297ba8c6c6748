"""Fixtures for the tests of completions."""

import pytest

from spass.aws.clients import TenantStore
from spass.core.ids import TenantId
from tests.unit.calls.scripted_provider import memory_store


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("acme"))
