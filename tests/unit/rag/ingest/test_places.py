"""The places of a tenant's files among the workers: taken by the worker that receives a message, kept, and given back."""

import json

import pytest

from spass.aws.job_targets import JobTargets
from spass.calls.scope import REQUEST_MAX_WAIT
from spass.core.errors import BudgetExceeded, RateLimited
from spass.core.ids import TenantId
from spass.core.jobs import MergeSegments, WorkKind, body_of
from spass.core.time import Deadline, now_s
from spass.rag.ingest.places import merge_of
from spass.rag.ingest.sweep import sweep_uploads
from spass.store import keys
from spass.store.writes import Put
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.rag.ingest.harness import INDEX, IngestHarness, jsonl_file, numbered_texts
from tests.unit.rag.ingest.test_worker import Failing

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
FILES = WorkKind.FILES


@pytest.fixture
def aws() -> MemoryAws:
    return MemoryAws(JobTargets(queue="jobs"), versioned=True, work_bound=lambda *_: 1)


@pytest.fixture
def harness(aws: MemoryAws) -> IngestHarness:
    harness = IngestHarness(aws)
    harness.change_settings(batch_documents=4)
    aws.queues.on_message = lambda _, body: harness.sent.append(body)
    return harness


def work(aws: MemoryAws, tenant: TenantId) -> list[str]:
    """Return the sort keys of the tenant's places and of what waits."""
    places, line = keys.work_places(FILES, tenant), keys.waiting_partition(tenant, FILES)
    return [str(item["sk"]) for item in aws.table.items() if (item["pk"], item["sk"]) == places or item["pk"] == line]


async def test_a_file_that_meets_the_rate_limit_is_put_back_with_its_progress(aws: MemoryAws, harness: IngestHarness) -> None:
    harness.change_settings(retry_pause_seconds=(600.0,))  # a worker that waits here does not end
    harness.calls.before_embedding = Failing(RateLimited("slow", retry_after=30), 1, 2)
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    for receives in (1, 5):
        assert await harness.deliver(event, receives=receives), "the message is done, also after its last delivery"
        assert harness.receive() == [event]
        assert 30 <= aws.queues.last_delay <= 36
        upload = await harness.only_upload()
        assert (upload.status, upload.documents_ingested) == ("queued", 4)
        assert work(aws, harness.tenant) == [harness.tenant], "it has its place"
    assert await harness.deliver(event)
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(10)
    assert harness.calls.texts == list(numbered_texts(10).values()), "nothing is embedded twice"
    assert work(aws, harness.tenant) == []
    assert {scope.seconds_to_wait for scope in harness.calls.scopes} == {REQUEST_MAX_WAIT}


async def test_a_budget_that_is_spent_is_not_waited_for(aws: MemoryAws, harness: IngestHarness) -> None:
    harness.calls.before_embedding = Failing(BudgetExceeded("spent", retry_after=86400), 0)
    event = harness.put(PATH, jsonl_file(numbered_texts(2)))
    assert not await harness.deliver(event, receives=5)
    assert (await harness.only_upload()).errors[0].code == "budget_exceeded"
    assert harness.receive() == []
    assert work(aws, harness.tenant) == [], "a file that has failed has no place"


@pytest.mark.parametrize("calls", range(9))
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY])
async def test_a_file_without_a_place_waits_and_is_ingested_once_wherever_its_worker_dies(
    aws: MemoryAws, harness: IngestHarness, fault: Fault, calls: int
) -> None:
    line = harness.store.line
    assert await line.take(FILES, "earlier")
    event = harness.put(PATH, jsonl_file(numbered_texts(3)))
    try:
        with inject(FaultPlan(fault, calls)):
            assert await harness.deliver(event, message="m")
    except Crash:
        assert await harness.deliver(event, message="m", receives=2)
    assert harness.calls.texts == []
    assert harness.receive() == []
    await line.give_back(FILES, "earlier")
    assert harness.sent
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert harness.calls.texts == list(numbered_texts(3).values())
    assert work(aws, harness.tenant) == []


@pytest.mark.parametrize("calls", range(30))
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_the_next_file_is_sent_wherever_the_worker_of_the_first_one_dies(
    aws: MemoryAws, harness: IngestHarness, fault: Fault, calls: int
) -> None:
    harness.change_settings(lease_seconds=-1)
    first, second = harness.put(PATH, jsonl_file(numbered_texts(2))), harness.put(f"{INDEX}/b.jsonl", jsonl_file({"b": "b"}))
    died = False
    try:
        with inject(FaultPlan(fault, calls)):
            assert await harness.deliver(first, message="m")
    except Crash:
        died = True
    assert await harness.deliver(second)
    if died:
        assert await harness.deliver(first, message="m", receives=2)
    await harness.deliver_all()
    assert await harness.texts() == numbered_texts(2) | {"b": "b"}
    assert work(aws, harness.tenant) == []


async def test_each_event_of_a_message_waits_alone(aws: MemoryAws, harness: IngestHarness) -> None:
    assert await harness.store.line.take(FILES, "earlier")
    events = [harness.put(f"{INDEX}/{name}.jsonl", jsonl_file({name: name})) for name in "ab"]
    both = json.dumps({"Records": [record for event in events for record in json.loads(event)["Records"]]})
    assert await harness.deliver(both)
    await harness.store.line.give_back(FILES, "earlier")
    assert len(harness.sent) == 1
    assert harness.sent[0] in events
    await harness.deliver_all()
    assert await harness.texts() == {"a": "a", "b": "b"}
    assert work(aws, harness.tenant) == []


async def test_a_duplicate_does_not_give_back_the_place_of_the_message_in_work(aws: MemoryAws, harness: IngestHarness) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(2)))

    async def deliver_again(*_: object) -> None:
        assert await harness.deliver(event, message="duplicate")
        assert work(aws, harness.tenant) == [harness.tenant]

    harness.calls.during_embedding = deliver_again
    assert await harness.deliver(event, message="m")
    assert work(aws, harness.tenant) == []


async def test_the_sweep_gives_back_the_place_of_a_file_that_no_worker_has(aws: MemoryAws, harness: IngestHarness) -> None:
    first, second = harness.put(PATH, jsonl_file(numbered_texts(2))), harness.put(f"{INDEX}/b.jsonl", jsonl_file({"b": "b"}))
    with inject(FaultPlan(Fault.CRASH_AFTER, 6)), pytest.raises(Crash):
        await harness.deliver(first)
    assert await harness.deliver(second)
    for minutes, sent in ((10, []), (20, [second])):
        await sweep_uploads(harness.store, now_s() + minutes * 60, Deadline.after(10))
        assert harness.sent == sent


async def test_a_merge_without_a_place_waits(aws: MemoryAws, harness: IngestHarness) -> None:
    merge = body_of(MergeSegments(harness.tenant, INDEX))
    assert await harness.store.line.take(FILES, "earlier")
    assert await harness.deliver(merge)
    assert len(work(aws, harness.tenant)) == 2, "the earlier place, and the merge that waits"
    await harness.store.line.give_back(FILES, "earlier")
    (sent,) = harness.receive()
    assert json.loads(sent).items() >= json.loads(merge).items()
    assert work(aws, harness.tenant) == [harness.tenant], "its message on the queue has a place"
    assert await harness.deliver(sent)
    assert work(aws, harness.tenant) == []


@pytest.mark.parametrize("places", [1, 2])
async def test_a_second_merge_of_an_index_does_not_give_back_the_place_of_the_first(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws = MemoryAws(JobTargets(queue="jobs"), versioned=True, work_bound=lambda *_: places)
    harness = IngestHarness(aws)
    aws.queues.on_message = lambda _, body: harness.sent.append(body)
    tenant, line = harness.tenant, harness.store.line
    message = body_of(MergeSegments(tenant, INDEX))
    free: list[list[bool]] = []

    async def merge_while_a_second_message_comes(*_: object) -> bool:
        if not free:
            free.append([])
            assert await harness.deliver(message)
            free[0] += [await line.take(FILES, f"file {number}") for number in range(places)]
        return True

    monkeypatch.setattr("spass.jobs.background.merge", merge_while_a_second_message_comes)
    assert await harness.deliver(message)
    assert free == [[True] * (places - 1) + [False]], "the first merge has its place until it ends"
    for number in range(places):
        await line.give_back(FILES, f"file {number}")
    await harness.deliver_all()
    assert work(aws, tenant) == []


@pytest.mark.parametrize("is_leased", [True, False])
async def test_the_sweep_gives_back_the_place_of_a_merge_that_no_worker_has(
    aws: MemoryAws, harness: IngestHarness, is_leased: bool
) -> None:
    assert await harness.store.line.take(FILES, f"{merge_of(INDEX)}.m")
    lease = Put(keys.rag_merge(harness.tenant, INDEX), {"owner": "x", "expires_at": now_s() + (10 if is_leased else -1)})
    await harness.store.table.write(lease)
    await sweep_uploads(harness.store, now_s(), Deadline.after(10))
    assert work(aws, harness.tenant) == ([harness.tenant] if is_leased else [])
