"""Fixtures for ingests on the emulator, with concurrent workers and workers that crash."""

import pytest

from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.core.time import now_s
from spass.rag.ingest.lease import IngestSettings
from tests.unit.rag.ingest.harness import IngestHarness


class Clock:
    """The clock of the leases, in seconds since the epoch. It moves only when a test sets ``seconds``."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def harness(aws: Aws, tenant: TenantId, clock: Clock) -> IngestHarness:
    return IngestHarness(aws, tenant=tenant, settings=IngestSettings(retry_pause_seconds=(), batch_documents=4, clock=clock))
