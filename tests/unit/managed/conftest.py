"""Managed agents on stores in memory."""

from pathlib import Path

import pytest

from tests.unit.managed.managed_store import ManagedStore
from tests.unit.managed.owned_agents import OwnedAgents


@pytest.fixture
def managed() -> ManagedStore:
    return ManagedStore()


@pytest.fixture
def owned(tmp_path: Path) -> OwnedAgents:
    return OwnedAgents(tmp_path)
