"""Inject each fault into each AWS call of an ingest. After a redelivery, the upload is the same as without the fault."""

import pytest

from spass.aws.clients import Aws
from spass.core.errors import SpassError
from spass.core.ids import IndexId
from spass.core.tasks import map_concurrently
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.ingest.conftest import Clock
from tests.simulated.memory import aws_for_faults
from tests.unit.rag.ingest.harness import IngestHarness, lines

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request, versioned=True)


BEFORE = {"d0": "old", "other": "stays"}
NEW = {f"d{n}": f"new {n}" for n in range(6)}
BODY = lines(*list(NEW.items())[:3], "bad", *list(NEW.items())[3:])


async def prepare(harness: IngestHarness, name: str) -> tuple[IndexId, str]:
    """Create an index with documents. Return it and the event of a file with two batches and an invalid line."""
    index = IndexId(name)
    await harness.rag.writer.append(
        harness.scope, index, [NewDocument(id=document, text=text) for document, text in BEFORE.items()]
    )
    return index, harness.put(f"{index}/a.jsonl", BODY)


async def deliver_until_done(harness: IngestHarness, clock: Clock, event: str) -> None:
    """Deliver the message again until it is done. Before each delivery the lease of the crashed worker expires."""
    for receives in range(2, 5):
        clock.seconds += LEASE_SECONDS + 1
        if await harness.deliver(event, message="m", receives=receives):
            return
    raise AssertionError("the message is not done after three deliveries without faults")


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_file_is_ingested_once_with_a_fault_in_any_call(harness: IngestHarness, clock: Clock, fault: Fault) -> None:
    _, event = await prepare(harness, "counted")
    with inject(FaultPlan()) as plan:
        assert await harness.deliver(event, message="m")
    points = [f"{call.service}:{call.operation}" for call in plan.calls]
    assert points.count("dynamodb:TransactWriteItems") == 2, "one for each batch"
    assert {"s3:HeadObject", "s3:GetObject", "dynamodb:UpdateItem", "dynamodb:PutItem"} < set(points), points

    async def fail_at(point: int, name: str) -> None:
        where = f"{fault} at {point} ({name})"
        index, event = await prepare(harness, f"{fault}-{point}")
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                is_done = await harness.deliver(event, message="m")
            except (Crash, SpassError):
                is_done = False
        assert len(plan.calls) > point, f"{where}: the ingest made too few AWS calls, so no fault was injected"
        assert await harness.deliver(event, message="duplicate") or not is_done, where
        if not is_done:
            await deliver_until_done(harness, clock, event)
        upload = await harness.only_upload(index)
        assert (upload.status, upload.documents_ingested, upload.documents_failed) == ("succeeded", 6, 1), where
        assert [error.line for error in upload.errors] == [4], where
        assert (upload.bytes_done, upload.bytes_total) == (len(BODY), len(BODY)), where
        assert await harness.texts(index) == BEFORE | NEW, where
        assert (await describe_index(harness.scope, index)).version == 3, where

    await map_concurrently(lambda point: fail_at(*point), enumerate(points), limit=6)
    assert len(points) > 15


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_refused_file_fails_once_with_a_fault_in_any_call(harness: IngestHarness, clock: Clock, fault: Fault) -> None:
    body = b"id,name\na,b\n"
    event = harness.put("counted/a.csv", body)
    with inject(FaultPlan()) as plan:
        assert await harness.deliver(event, message="m")
    for point, call in enumerate(plan.calls):
        index = IndexId(f"{fault}-{point}")
        event = harness.put(f"{index}/a.csv", body)
        with inject(FaultPlan(fault, at=point)):
            try:
                is_done = await harness.deliver(event, message="m")
            except (Crash, SpassError):
                is_done = False
        if not is_done:
            await deliver_until_done(harness, clock, event)
        upload = await harness.only_upload(index)
        assert (upload.status, len(upload.errors)) == ("failed", 1), f"{fault} at {point} ({call.operation})"
