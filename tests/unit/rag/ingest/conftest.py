"""A table, a bucket with versions and a queue in memory."""

import pytest

from spass.testing.aws import MemoryAws
from tests.simulated.memory import WITH_QUEUE
from tests.unit.rag.ingest.harness import IngestHarness


@pytest.fixture
def harness() -> IngestHarness:
    aws = MemoryAws(WITH_QUEUE, versioned=True)
    harness = IngestHarness(aws)
    aws.queues.on_message = lambda _, body: harness.sent.append(body)
    return harness


@pytest.fixture
def documents_per_batch(harness: IngestHarness) -> int:
    """Set and return the number of documents of a batch."""
    harness.change_settings(batch_documents=4)
    return 4
