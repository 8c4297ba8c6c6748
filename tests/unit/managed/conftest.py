"""Managed agents on stores in memory."""

import pytest

from tests.unit.managed.managed_store import ManagedStore


@pytest.fixture
def managed() -> ManagedStore:
    return ManagedStore()
