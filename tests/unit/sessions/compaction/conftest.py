"""The store for tests of summaries."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spass.aws.job_targets import JobTargets
from spass.core.ids import TenantId
from spass.store import invocation
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TenantStore]:
    """Return an empty store. Its calls run in one thread, because the table in memory is not thread-safe."""
    with ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(invocation, "_threads", thread)
        yield MemoryAws(JobTargets(compaction_queue="compactions"), time.time).for_tenant(TenantId("acme"))
