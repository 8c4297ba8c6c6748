"""Every AWS call of a write is made to go wrong in every way; the client then retries, and the write is there once."""

import pytest

from spass.aws.clients import Aws
from spass.aws.idempotency import Claim, IdempotentRequest, StoredAnswer, acquire
from spass.aws.leases import LEASE_SECONDS, LeaseLost
from spass.core.errors import Conflict, SpassError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now_s
from spass.rag.index.catalog import describe_index
from spass.rag.write.swap import Completion
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.rag.conftest import RagHarness, Verb, documents
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


OLD = {"a": "alt", "b": "bleibt", **{f"f{n}": f"fest {n}" for n in range(8)}}
NEW = {"a": "neu", "c": "dazu", "d": "auch"}


class Clock:
    """The time by which leases are judged; it only moves when told."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("spass.aws.idempotency.now_s", clock)
    return clock


@pytest.fixture(autouse=True)
def bitmaps_in_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their writes are among the calls that fail."""
    monkeypatch.setattr("spass.rag.write.deleted_rows.MAX_INLINE_BITMAP_BYTES", 0)


async def prepared(harness: RagHarness, index: IndexId) -> None:
    """An index of one large segment that will get a dead row, and a small one that will be merged."""
    rag = harness.worker()
    await rag.writer.append(harness.scope(), index, documents(*OLD.items()))
    await rag.writer.append(harness.scope(), index, documents(("e", "klein")))


async def retried(harness: RagHarness, clock: Clock, verb: Verb, index: IndexId) -> StoredAnswer:
    """What a client gets that sends the same request again until it is answered, waiting as long as it is told to."""
    for _ in range(LEASE_SECONDS):
        try:
            return await harness.write(verb, index, documents(*NEW.items()), str(index))
        except (Conflict, StorageUnavailable) as refused:
            clock.seconds += told(refused)
    raise AssertionError("a minute was not enough")


def told(refused: SpassError) -> int:
    assert refused.retry_after is not None, "a client must be told when to try again"
    return int(refused.retry_after)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize(
    ("verb", "replaced", "contents", "puts"),
    [("append", 1, OLD | {"e": "klein"} | NEW, 6), ("replace", 11, NEW, 5)],
    ids=["append", "replace"],
)
async def test_a_write_takes_place_once_whichever_call_goes_wrong(
    harness: RagHarness, clock: Clock, fault: Fault, verb: Verb, replaced: int, contents: dict[str, str], puts: int
) -> None:
    counted = IndexId("counted")
    await prepared(harness, counted)
    with inject(FaultPlan()) as plan:
        await harness.write(verb, counted, documents(*NEW.items()), "counted")
    points = [f"{call.service}:{call.operation}" for call in plan.calls]
    assert {"dynamodb:PutItem", "dynamodb:GetItem", "dynamodb:TransactWriteItems"} < set(points), points
    assert points.count("s3:PutObject") == puts, "five of the segment, and for an append one of dead rows"
    assert points.count("s3:GetObject") == (0 if verb == "replace" else 6), "two ids, and four more of the merged segment"
    for point, name in enumerate(points):
        index = IndexId(f"{fault}-{point}")
        await prepared(harness, index)
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                first: StoredAnswer | None = await harness.write(verb, index, documents(*NEW.items()), str(index))
            except (Crash, Conflict, StorageUnavailable):
                first = None
        assert len(plan.calls) > point, "the fault was met"
        where = f"{fault} at {point} ({name})"
        again = await retried(harness, clock, verb, index)
        assert first is None or first.body == again.body, where
        counts = {"doc_count": len(contents), "ingested": len(NEW), "replaced": replaced, "version": 3}
        assert again.body == {"index_id": index} | counts, where
        assert (await describe_index(harness.scope(), index)).version == 3, where
        assert await harness.contents(index) == contents, where
    assert len(points) > 7


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT])
async def test_deletions_settle_a_lost_reply_by_reading_whose_swap_it_was(harness: RagHarness, fault: Fault) -> None:
    counted = IndexId("counted")
    await prepared(harness, counted)
    rag = harness.worker()
    with inject(FaultPlan()) as plan:
        await rag.deleter.delete_document(harness.scope(), counted, DocumentId("a"))
    swap = [call.operation for call in plan.calls].index("TransactWriteItems")
    index = IndexId("one")
    await prepared(harness, index)
    with inject(FaultPlan(fault, at=swap)):
        assert await harness.worker().deleter.delete_document(harness.scope(), index, DocumentId("a")) is True
    assert (await describe_index(harness.scope(), index)).version == 3
    with inject(FaultPlan(fault, at=1)):
        assert await rag.deleter.delete_index(harness.scope(), index) is True
    assert (await rag.writer.append(harness.scope(), index, documents(("a", "x")))).version == 5


async def test_a_claim_that_passed_to_another_try_writes_nothing(harness: RagHarness, clock: Clock) -> None:
    index = IndexId("one")
    request = IdempotentRequest("digest", "body")
    ghost = await acquire(harness.store, request)
    clock.seconds += LEASE_SECONDS + 1
    heir = await acquire(harness.store, request)
    assert isinstance(ghost, Claim)
    assert isinstance(heir, Claim)
    with pytest.raises(LeaseLost):
        await harness.worker().writer.append(harness.scope(), index, documents(("a", "geist")), Completion(ghost))
    assert (await harness.worker().writer.append(harness.scope(), index, documents(("a", "erbe")), Completion(heir))).version == 1
    assert await harness.contents(index) == {"a": "erbe"}
