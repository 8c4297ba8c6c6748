"""Inject each fault into each AWS call of a write. After a retry the write takes effect once."""

import pytest

from spass.aws.clients import Aws
from spass.core.errors import Conflict, SpassError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now_s
from spass.rag.index.catalog import describe_index
from spass.rag.index.responses import WriteAnswer
from spass.store.idempotency import Claim, Completion, StoredResponse, acquire
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.rag.conftest import RagHarness, Verb, documents
from tests.simulated.memory import aws_for_faults
from tests.unit.idempotent_requests import idempotent_request

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


OLD = {"a": "alt", "b": "bleibt", **{f"f{n}": f"fest {n}" for n in range(8)}}
NEW = {"a": "neu", "c": "dazu", "d": "auch"}


class Clock:
    """The clock of the leases, in seconds since the epoch. It moves only when a test sets ``seconds``."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("spass.store.idempotency.now_s", clock)
    return clock


@pytest.fixture(autouse=True)
def no_inline_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store all bitmaps as objects, so that their puts are among the calls that fail."""
    monkeypatch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)


async def prepare(harness: RagHarness, index: IndexId) -> None:
    """Append a large segment, which will get a deleted row, and a small one, which will be merged."""
    rag = harness.worker()
    await rag.writer.append(harness.scope(), index, documents(*OLD.items()))
    await rag.writer.append(harness.scope(), index, documents(("e", "klein")))


async def retry(harness: RagHarness, clock: Clock, verb: Verb, index: IndexId) -> StoredResponse:
    """Send a request until it is answered, obeying ``Retry-After``, and return the answer."""
    for _ in range(LEASE_SECONDS):
        try:
            return await harness.write(verb, index, documents(*NEW.items()), str(index))
        except (Conflict, StorageUnavailable) as error:
            clock.seconds += retry_seconds(error)
    raise AssertionError(f"the request still fails after {LEASE_SECONDS} attempts")


def retry_seconds(error: SpassError) -> int:
    assert error.retry_after is not None, "the error must state a retry time"
    return int(error.retry_after)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize(
    ("verb", "replaced", "contents", "puts"),
    [("append", 1, OLD | {"e": "klein"} | NEW, 6), ("replace", 11, NEW, 5)],
    ids=["append", "replace"],
)
async def test_a_retried_write_takes_effect_once_with_a_fault_in_any_call(
    harness: RagHarness, clock: Clock, fault: Fault, verb: Verb, replaced: int, contents: dict[str, str], puts: int
) -> None:
    reference = IndexId("counted")
    await prepare(harness, reference)
    with inject(FaultPlan()) as plan:
        await harness.write(verb, reference, documents(*NEW.items()), "counted")
    points = [f"{call.service}:{call.operation}" for call in plan.calls]
    assert {"dynamodb:PutItem", "dynamodb:GetItem", "dynamodb:TransactWriteItems"} < set(points), points
    assert points.count("s3:PutObject") == puts, "five of the segment, and for an append one bitmap"
    assert points.count("s3:GetObject") == (0 if verb == "replace" else 6), "two ids, and four more of the merged segment"
    for point, name in enumerate(points):
        index = IndexId(f"{fault}-{point}")
        await prepare(harness, index)
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                first: StoredResponse | None = await harness.write(verb, index, documents(*NEW.items()), str(index))
            except (Crash, Conflict, StorageUnavailable):
                first = None
        assert len(plan.calls) > point, "the write made too few AWS calls, so no fault was injected"
        where = f"{fault} at {point} ({name})"
        answer = await retry(harness, clock, verb, index)
        assert first is None or first.body == answer.body, where
        counts = {"doc_count": len(contents), "ingested": len(NEW), "replaced": replaced, "version": 3}
        assert answer.body == {"index_id": index} | counts, where
        assert (await describe_index(harness.scope(), index)).version == 3, where
        assert await harness.texts(index) == contents, where
    assert len(points) > 7


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT])
async def test_a_deletion_succeeds_if_its_reply_is_lost(harness: RagHarness, fault: Fault) -> None:
    reference = IndexId("counted")
    await prepare(harness, reference)
    rag = harness.worker()
    with inject(FaultPlan()) as plan:
        await rag.deleter.delete_document(harness.scope(), reference, DocumentId("a"))
    swap = [call.operation for call in plan.calls].index("TransactWriteItems")
    index = IndexId("one")
    await prepare(harness, index)
    with inject(FaultPlan(fault, at=swap)):
        assert await harness.worker().deleter.delete_document(harness.scope(), index, DocumentId("a")) is True
    assert (await describe_index(harness.scope(), index)).version == 3
    with inject(FaultPlan(fault, at=1)):
        assert await rag.deleter.delete_index(harness.scope(), index) is True
    assert (await rag.writer.append(harness.scope(), index, documents(("a", "x")))).version == 5


async def test_a_request_whose_claim_expired_writes_nothing(harness: RagHarness, clock: Clock) -> None:
    index = IndexId("one")
    request = idempotent_request("digest", "body")
    expired = await acquire(harness.store, request)
    clock.seconds += LEASE_SECONDS + 1
    successor = await acquire(harness.store, request)
    assert isinstance(expired, Claim)
    assert isinstance(successor, Claim)
    with pytest.raises(LeaseLost):
        await harness.worker().writer.append(
            harness.scope(), index, documents(("a", "geist")), Completion(expired, WriteAnswer.to_dict)
        )
    assert (
        await harness.worker().writer.append(
            harness.scope(), index, documents(("a", "erbe")), Completion(successor, WriteAnswer.to_dict)
        )
    ).version == 1
    assert await harness.texts(index) == {"a": "erbe"}
