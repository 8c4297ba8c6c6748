"""Ingest on the emulator: several workers at a time, and workers that die."""

import pytest

from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.core.time import now_s
from tests.unit.rag.ingest.harness import IngestHarness


class Clock:
    """The time by which leases are judged; it only moves when told."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("spass.rag.ingest.lease.now_s", clock)
    return clock


@pytest.fixture
def harness(aws: Aws, tenant: TenantId) -> IngestHarness:
    return IngestHarness(aws, tenant=tenant)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.ingest.batches.MAX_DOCUMENTS", 4)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker leaves to the queue at once what does not work."""
    monkeypatch.setattr("spass.rag.ingest.worker.PAUSES", ())
