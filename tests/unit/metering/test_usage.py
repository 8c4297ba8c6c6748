"""Test the usage by group, and its reset, which does not change the cost of the month."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from spass.core.errors import InvalidRequest, StorageUnavailable
from spass.core.ids import AgentName, UserId
from spass.core.messages import TokenUsage
from spass.metering import usage as metering
from spass.metering.audit import SHARDS, ShardChooser, record_call
from spass.metering.usage import GroupBy, UsageQuery, reset, spending_of_month, usage
from spass.store import keys
from spass.store.table import Query, TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Write
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.metering.ledger import TODAY, Faults, call, days_ago, usd

pytestmark = pytest.mark.anyio

MONTH = TODAY.isoformat()[:7]


async def rows(store: TenantStore, query: UsageQuery | None = None) -> dict[Any, tuple[int, int, str]]:
    """Return (requests, tokens, dollars) of each group, in the order of the answer."""
    answer: Any = (await usage(store, query or UsageQuery())).to_dict()
    return {row["key"]: (row["requests"], row["total_tokens"], row["cost_usd"]) for row in answer["usage"]}


async def total(store: TenantStore, query: UsageQuery | None = None) -> Any:
    answer: Any = (await usage(store, query or UsageQuery())).to_dict()
    return answer["total"]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("agent", {"reader": (2, 30, "0.75"), "writer": (1, 15, "1"), None: (1, 15, "0.25")}),
        ("model", {"large": (1, 15, "1"), "small": (3, 45, "1")}),
        ("user", {"anna": (3, 45, "1.75"), None: (1, 15, "0.25")}),
        ("day", {TODAY.isoformat(): (4, 60, "2")}),
    ],
)
async def test_usage_is_grouped_by_agent_model_user_or_day(store: TenantStore, by: GroupBy, groups: dict[Any, Any]) -> None:
    await record_call(store, call(agent=AgentName("reader")))
    await record_call(store, call(agent=AgentName("reader"), cost=usd("0.5")))
    await record_call(store, call(agent=AgentName("writer"), model="large", cost=usd("1")))
    await record_call(store, call(agent=None, user=None))
    groups_found = await rows(store, UsageQuery(by))
    assert groups_found == groups
    assert list(groups_found) == list(groups)
    assert await total(store, UsageQuery(by)) == {
        "requests": 4,
        "prompt_tokens": 40,
        "completion_tokens": 20,
        "total_tokens": 60,
        "cost_usd": "2",
    }


async def test_a_query_for_one_agent_counts_only_its_calls(store: TenantStore) -> None:
    await record_call(store, call(agent=AgentName("reader"), user=UserId("anna")))
    await record_call(store, call(agent=AgentName("reader"), user=UserId("bert")))
    await record_call(store, call(agent=AgentName("reader-2")))
    await record_call(store, call(agent=None))
    query = UsageQuery("user", AgentName("reader"))
    assert list(await rows(store, query)) == ["anna", "bert"]
    assert (await total(store, query))["requests"] == 2


@pytest.mark.parametrize("span", [(0, 0), (10, 0), (40, 40), (40, 10), (399, 41), (200, 100), (400, 0), (9999, -9999)])
async def test_the_first_and_last_days_are_included_across_months(store: TenantStore, span: tuple[int, int]) -> None:
    days = [0, 1, 9, 10, 11, 39, 40, 41, 200, 399]
    for days_back in days:
        await record_call(store, call(at=days_ago(days_back)))
    first, last = (TODAY - timedelta(days=days_back) for days_back in span)
    groups_found = await rows(store, UsageQuery("day", first=first, last=last))
    expected = sorted((TODAY - timedelta(days=days_back)).isoformat() for days_back in days if span[0] >= days_back >= span[1])
    assert list(groups_found) == expected


async def test_any_day_is_a_valid_limit_of_a_query(store: TenantStore) -> None:
    await record_call(store, call())
    assert await rows(store, UsageQuery(first=date.min, last=date.max)) == {"researcher": (1, 15, "0.25")}
    assert await rows(store, UsageQuery(last=date.min)) == {}
    assert await rows(store, UsageQuery(first=date.max)) == {}


async def test_a_last_day_before_the_first_is_refused(store: TenantStore) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await usage(store, UsageQuery(first=TODAY, last=TODAY - timedelta(days=1)))
    assert refusal.value.param == "to"


async def test_rows_are_read_page_by_page(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await record_call(store, call(user=UserId(f"u{number}")))
    monkeypatch.setattr(metering, "_PAGE_ROWS", 3)
    with inject(FaultPlan()) as plan:
        assert len(await rows(store, UsageQuery("user", first=TODAY, last=TODAY))) == 7
    first_query = next(table_call for table_call in plan.calls if table_call.operation == "Query")
    assert cast(Query, first_query.parameters["query"]).limit == 3
    assert len(plan.calls) >= 3
    assert await spending_of_month(store, MONTH) == Decimal("1.75")
    assert await reset(store) == 7


async def test_months_are_read_concurrently(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for days_back in (0, 35, 70, 399):
        await record_call(store, call(at=days_ago(days_back)))
    in_flight, max_in_flight, query = 0, 0, store.table.query

    async def count_queries(_: TenantTable, partition: str, **options: Any) -> list[Item]:
        nonlocal in_flight, max_in_flight
        in_flight += 1
        max_in_flight = max(max_in_flight, in_flight)
        try:
            return await query(partition, **options)
        finally:
            in_flight -= 1

    monkeypatch.setattr(TenantTable, "query", count_queries)
    assert (await total(store))["requests"] == 4
    assert 4 <= max_in_flight <= 8


async def test_too_many_groups_are_refused_with_advice(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "MAX_GROUPS", 3)
    for number in range(4):
        await record_call(store, call(user=UserId(f"u{number}")))
    with pytest.raises(InvalidRequest, match="fewer days"):
        await usage(store, UsageQuery("user"))
    assert (await total(store, UsageQuery("agent")))["requests"] == 4


async def test_the_usage_of_a_tenant_without_calls_is_zero(store: TenantStore) -> None:
    assert await rows(store) == {}
    assert (await total(store))["cost_usd"] == "0"
    assert await reset(store) == 0
    assert await spending_of_month(store, MONTH) == 0


async def test_sums_of_costs_are_exact(store: TenantStore) -> None:
    for _ in range(3):
        await record_call(store, call(cost=usd("0.000000000001")))
    await record_call(store, call(cost=usd("99999.999999999999"), usage=TokenUsage(10**12, 10**12)))
    assert (await total(store))["cost_usd"] == "100000.000000000002"
    assert await spending_of_month(store, MONTH) == Decimal("100000.000000000002")


async def test_a_reset_clears_the_report_but_not_the_cost_of_the_month(store: TenantStore) -> None:
    await record_call(store, call(cost=usd("0.25")))
    assert await reset(store) == 1
    assert await rows(store) == {}
    assert await spending_of_month(store, MONTH) == Decimal("0.25")
    await record_call(store, call(cost=usd("0.5")))
    assert await rows(store) == {"researcher": (1, 15, "0.5")}
    assert await reset(store) == 1
    assert await reset(store) == 0
    assert await spending_of_month(store, MONTH) == Decimal("0.75")


async def test_a_reset_of_one_agent_affects_all_its_months_and_no_other_agent(store: TenantStore) -> None:
    for days_back in (0, 45, 300):
        await record_call(store, call(agent=AgentName("reader"), at=days_ago(days_back)))
        await record_call(store, call(agent=AgentName("writer"), at=days_ago(days_back)))
    await record_call(store, call(agent=None))
    assert await reset(store, AgentName("reader")) == 3
    assert list(await rows(store)) == ["writer", None]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
async def test_a_reset_takes_effect_once_under_every_fault(store: TenantStore, fault: Fault) -> None:
    await record_call(store, call())
    with inject(FaultPlan()) as plan:
        await usage(store, UsageQuery())
    with inject(FaultPlan(fault, at=len(plan.calls))):  # the reset of the rows follows the last page
        assert await reset(store) == 1
    assert await rows(store) == {}
    assert await spending_of_month(store, MONTH) == Decimal("0.25")


async def test_a_reset_that_fails_is_storage_unavailable(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await record_call(store, call(user=UserId(f"u{number}")))

    async def throttle(_: TenantTable, write: Write) -> None:
        raise StorageUnavailable("throttled")

    with monkeypatch.context() as patch:
        patch.setattr(TenantTable, "write", throttle)
        with pytest.raises(StorageUnavailable):
            await reset(store)
    assert await reset(store) == 3


@pytest.mark.parametrize("operation", [usage, reset])
async def test_a_report_that_cannot_be_read_is_storage_unavailable(store: TenantStore, operation: Callable[..., Any]) -> None:
    with inject(Faults(always=Fault.THROTTLE)), pytest.raises(StorageUnavailable):
        await operation(store, *([UsageQuery()] if operation is usage else []))


async def test_concurrent_writes_choose_different_shards(store: TenantStore) -> None:
    for _ in range(5):
        await record_call(store, call())
    assert len(await store.table.query(keys.usage_partition(store.tenant, MONTH))) == 1
    shards = ShardChooser()
    with shards.choose() as first_shard, shards.choose() as second_shard:
        assert second_shard == (first_shard + 1) % SHARDS
    with shards.choose() as next_shard:
        assert next_shard == first_shard


def test_more_writers_than_shards_share_shards() -> None:
    shards = ShardChooser()
    with ExitStack() as stack:
        numbers = [stack.enter_context(shards.choose()) for _ in range(SHARDS + 2)]
    assert sorted(numbers[:SHARDS]) == list(range(SHARDS))
    assert set(numbers[SHARDS:]) <= set(range(SHARDS))
    with ExitStack() as stack:
        assert len({stack.enter_context(shards.choose()) for _ in range(SHARDS)}) == SHARDS
