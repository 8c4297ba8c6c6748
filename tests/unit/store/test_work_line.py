"""The places that a tenant has for its work: what is out, what waits, and in which order it is sent."""

import json
import random
from collections.abc import Callable

import pytest

from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.core.jobs import WorkKind
from spass.store import keys
from spass.store.invocation import ServiceCall
from spass.store.table import GuardedTable
from spass.store.work_line import WorkLine
from spass.store.writes import Delete, Item, Put, Update
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio

PLACES = 4
RUNS = WorkKind.RUNS
A, B = TenantId("a"), TenantId("b")


class NoQueue(FaultPlan):
    """The queue does not answer."""

    def next_fault(self, call: ServiceCall) -> Fault | None:
        return Fault.THROTTLE if call.operation == "SendMessage" else None


class Lines:
    """The lines of all tenants. ``sent`` are the bodies of the messages that were sent."""

    def __init__(self) -> None:
        self.aws = MemoryAws(JobTargets(runs_queue="runs"), work_bound=lambda *_: PLACES)
        self.sent: list[str] = []
        self.aws.queues.on_message = lambda _, body: self.sent.append(str(json.loads(body)))

    def of(self, tenant: TenantId) -> WorkLine:
        return self.aws.for_tenant(tenant).line

    async def enter(self, tenant: TenantId, name: str) -> bool:
        """Take a place, or wait. Names sort as they come."""
        if await self.of(tenant).take(RUNS, name):
            return True
        await self.of(tenant).wait(RUNS, name, name, json.dumps(name))
        return False

    async def leave(self, tenant: TenantId, name: str, *, is_repeated: bool = False) -> None:
        await self.of(tenant).give_back(RUNS, name, is_repeated=is_repeated)

    @property
    def is_empty(self) -> bool:
        return [*self.aws.table.items()] == []


@pytest.fixture
def lines() -> Lines:
    return Lines()


async def test_a_tenant_gets_its_places_and_the_rest_waits_in_order(lines: Lines) -> None:
    assert [await lines.enter(A, str(n)) for n in range(7)] == [True] * 4 + [False] * 3
    for n in range(7):
        await lines.leave(A, str(n))
    assert lines.sent == ["4", "5", "6"]
    assert lines.is_empty


async def test_no_tenant_takes_the_place_of_another_one(lines: Lines) -> None:
    for n in range(7):
        await lines.enter(A, str(n))
    assert [await lines.enter(B, str(n)) for n in range(5)] == [True] * 4 + [False]
    await lines.leave(A, "0")
    await lines.leave(B, "0")
    assert lines.sent == ["4", "4"], "one for one"


async def test_work_does_not_overtake_what_waits(lines: Lines) -> None:
    for n in range(5):
        await lines.enter(A, str(n))
    with inject(FaultPlan(Fault.CRASH_AFTER, 1)), pytest.raises(Crash):
        await lines.leave(A, "0")
    assert not await lines.of(A).take(RUNS, "5"), "a place is free, and 4 waits for it"
    await lines.leave(A, "0", is_repeated=True)
    assert lines.sent == ["4"]


@pytest.mark.parametrize("calls", range(8))
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY])
async def test_the_next_piece_is_sent_wherever_the_worker_dies_that_gives_its_place_back(
    lines: Lines, fault: Fault, calls: int
) -> None:
    """Its message is delivered again, and it gives the place back once more."""
    for n in range(6):
        await lines.enter(A, str(n))
    try:
        with inject(FaultPlan(fault, calls)):
            await lines.leave(A, "0")
    except Crash:
        await lines.leave(A, "0", is_repeated=True)
    assert set(lines.sent) == {"4"}
    for n in range(1, 6):
        await lines.leave(A, str(n))
    assert set(lines.sent) == {"4", "5"}


async def test_a_repeated_step_counts_once(lines: Lines) -> None:
    for _ in range(3):
        assert await lines.enter(A, "0")
    assert [await lines.enter(A, str(n)) for n in range(1, 5)] == [True, True, True, False]
    for _ in range(3):
        await lines.leave(A, "0")
    assert lines.sent == ["4"]


async def test_the_sweep_gives_back_the_places_of_work_that_is_over_and_sends_what_waits(lines: Lines) -> None:
    for n in range(6):
        await lines.enter(A, str(n))

    async def is_over(name: str) -> bool:
        return name == "1"

    await lines.of(A).repair(RUNS, is_over)
    assert lines.sent == ["4"]
    await lines.of(A).repair(RUNS, is_over)
    assert lines.sent == ["4"]


async def test_the_sweep_repairs_a_line_that_others_could_not_see(lines: Lines) -> None:
    for n in range(4):
        await lines.enter(A, str(n))
    with inject(FaultPlan(Fault.CRASH_AFTER)), pytest.raises(Crash):
        await lines.of(A).wait(RUNS, "4", "4", json.dumps("4"))

    async def is_over(_: str) -> bool:
        return False

    await lines.of(A).repair(RUNS, is_over)
    assert lines.sent == []
    await lines.leave(A, "0")
    assert lines.sent == ["4"]


async def test_a_worker_that_saw_an_empty_line_does_not_forget_what_came_later(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers find the line empty. The first one forgets it, a piece begins to wait, and then the second one forgets."""
    for n in range(5):
        await lines.enter(A, str(n))
    write, is_first = GuardedTable.write, True

    async def delay(table: GuardedTable, change: Put | Update | Delete) -> Item | None:
        nonlocal is_first
        if isinstance(change, Update) and "waits" in change.remove and is_first:
            is_first = False
            await lines.leave(A, "1")
            assert await lines.enter(A, "5")
            assert not await lines.enter(A, "6")
        return await write(table, change)

    monkeypatch.setattr(GuardedTable, "write", delay)
    await lines.leave(A, "0")
    assert not is_first
    for n in (2, 3, 4, 5, 6):
        await lines.leave(A, str(n))
    assert lines.sent == ["4", "6"]
    assert lines.is_empty


async def test_what_could_not_be_sent_is_sent_next_and_before_what_came_later(lines: Lines) -> None:
    assert [await lines.enter(A, str(n)) for n in range(5)] == [True] * 4 + [False]
    with inject(NoQueue()), pytest.raises(StorageUnavailable):
        await lines.leave(A, "0")
    assert lines.sent == []
    assert not await lines.enter(A, "5")
    assert lines.sent == ["4"]
    await lines.leave(A, "1")
    assert lines.sent == ["4", "5"]


async def test_a_message_has_the_group_of_its_tenant(lines: Lines) -> None:
    groups: list[str] = []
    send: Callable[..., dict[str, object]] = lines.aws.queues.send_message

    def note(**call: str) -> dict[str, object]:
        groups.append(call["MessageGroupId"])
        return send(**call)

    lines.aws.queues.send_message = note  # type: ignore[method-assign]
    for tenant in (A, A, B):
        await lines.aws.for_tenant(tenant).jobs.send_body(RUNS, '"x"')
    assert groups[0] == groups[1] != groups[2]
    assert all(group.isalnum() and len(group) <= 128 for group in groups), "SQS accepts it"


async def test_no_place_is_an_item_of_a_tenants_part_of_the_table(lines: Lines) -> None:
    await lines.enter(A, "0")
    assert [item["pk"] for item in lines.aws.table.items()] == [keys.work_partition(RUNS)]


@pytest.mark.parametrize("seed", range(5))
async def test_the_work_of_20_tenants_starts_in_order_and_within_their_places(lines: Lines, seed: int) -> None:
    rng = random.Random(seed)
    tenants = [TenantId(f"tenant-{number}") for number in range(20)]
    asked, ended = dict.fromkeys(tenants, 0), dict.fromkeys(tenants, 0)
    started: dict[TenantId, list[str]] = {tenant: [] for tenant in tenants}
    lines.aws.queues.on_message = lambda _, body: started[TenantId(json.loads(body).split()[0])].append(json.loads(body))
    for _ in range(1500):
        tenant = rng.choice(tenants)
        if rng.random() < 0.6:
            name = f"{tenant} {asked[tenant]:04}"
            asked[tenant] += 1
            if await lines.enter(tenant, name):
                started[tenant].append(name)
        elif ended[tenant] < len(started[tenant]):
            await lines.leave(tenant, started[tenant][ended[tenant]])
            ended[tenant] += 1
        in_work = len(started[tenant]) - ended[tenant]
        assert in_work == min(PLACES, asked[tenant] - ended[tenant])
    assert all(names == sorted(names) for names in started.values())
