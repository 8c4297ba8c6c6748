"""Count a tenant's model calls, their tokens and their cost by day, agent, model and user, and report the sums.

A call is counted if the model answered, began to answer, or may have billed an answer that was lost. Any other call cost nothing.
Rows are stored for 400 days. A reset changes only what the report shows: the cost of the month still counts for the budget.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final, Literal, TypeAlias, cast

from spass.core.cost import decimal_text
from spass.core.errors import InvalidRequest
from spass.core.ids import AgentName, TenantId
from spass.core.tasks import map_concurrently, run_concurrently
from spass.core.time import now
from spass.store import keys
from spass.store.keys import Key
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import AllOf, Equals, Item, Update, Value
from spass.tenancy.response_model import Count, DecimalText, ResponseModel

KEEP_DAYS: Final = 400
MAX_GROUPS: Final = 10_000

_DIGITS: Final = 12  # a row counts money as a whole number of 1e-12 US dollars, so that sums are exact
_PAGE_ROWS: Final = 1000
_CONCURRENCY: Final = 8  # months read, or rows reset, at the same time
_DAY_SECONDS: Final = 24 * 3600
_SUMS: Final = ("requests", "prompt_tokens", "completion_tokens", "cost")

GroupBy: TypeAlias = Literal["agent", "model", "user", "day"]


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Report the calls of ``agent`` from the day ``first`` to the day ``last``, inclusive, in UTC."""

    group_by: GroupBy = "agent"
    agent: AgentName | None = None
    first: date | None = None
    last: date | None = None


class UsageTotal(ResponseModel):
    """The number of model calls, their tokens and their cost."""

    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    cost_usd: DecimalText


class UsageGroup(UsageTotal):
    """The usage of one agent, model, user or day: its name is `key`. `key` is null for calls without an agent or user."""

    key: str | None


class UsageReport(ResponseModel):
    """The usage of models, by group and in total."""

    usage: list[UsageGroup]
    total: UsageTotal


class Reset(ResponseModel):
    """The answer to a reset of the usage."""

    reset: bool


async def usage(store: TenantStore, query: UsageQuery) -> UsageReport:
    """Return the usage by group and in total. Raise ``InvalidRequest`` if the last day is before the first, or if there are more
    groups than one answer may have."""
    first, last = _days(query)
    groups: defaultdict[str | None, Counter[str]] = defaultdict(Counter)

    async def add_rows(page: list[Item]) -> None:
        for row in _rows_of(page, query.agent):
            groups[cast("str | None", row.get(query.group_by))].update({name: cast(int, row[name]) for name in _SUMS})
        if len(groups) > MAX_GROUPS:
            raise InvalidRequest(f"There are more than {MAX_GROUPS} groups; ask for fewer days.", param="from")

    await _each_page(store, first, last, add_rows)
    in_order = sorted(groups.items(), key=lambda group: (group[0] is None, group[0] or ""))
    usage_groups = [UsageGroup(key=key, **_total(sums).to_dict()) for key, sums in in_order]
    return UsageReport(usage=usage_groups, total=_total(sum(groups.values(), Counter())))


async def reset(store: TenantStore, agent: AgentName | None = None) -> int:
    """Set the usage of ``agent``, or of all agents, to 0 and return the number of rows that this changed. After
    ``StorageUnavailable`` some rows may be reset."""
    first, last = _days(UsageQuery())
    count = 0

    async def reset_rows(page: list[Item]) -> None:
        nonlocal count
        rows = _rows_of(page, agent)
        await map_concurrently(partial(_reset_row, store), rows, limit=_CONCURRENCY)
        count += len(rows)

    await _each_page(store, first, last, reset_rows)
    return count


async def spending_of_month(store: TenantStore, month: str) -> Decimal:
    """Return the cost in US dollars of all calls of ``month`` (``2026-04``), including calls before a reset."""
    spent = 0
    async for rows in _month(store, month):
        spent += sum(cast(int, row["cost"]) + cast(int, row.get("cost_before_reset", 0)) for row in rows)
    return _usd(spent)


def usage_update(tenant: TenantId, record: Mapping[str, Value], shard: int) -> Update | None:
    """Return the write that counts the call of an audit record in the row ``shard``, or None if the call does not count."""
    tokens = [cast(int, record.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")]
    cost = int(Decimal(cast(str, record.get("cost_usd", "0"))).scaleb(_DIGITS))
    if record["kind"] == "tool" or not (record["status"] == "ok" or any(tokens) or cost):
        return None
    day = cast(str, record["at"])[:10]
    names = {name: cast(str, record[name]) for name in ("agent", "model", "user") if record.get(name)}
    # The end of the day, so that the row is readable for 400 whole days.
    expires = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) + (KEEP_DAYS + 1) * _DAY_SECONDS
    return Update(
        keys.usage(tenant, day, names.get("agent", ""), names.get("model", ""), names.get("user", ""), shard),
        set={"day": day, **names, TTL: expires},
        add=dict(zip(_SUMS, (1, *tokens, cost), strict=True)),
    )


def _rows_of(page: Iterable[Item], agent: AgentName | None) -> list[Item]:
    """Return the rows of ``agent``, or of all agents, with requests since their last reset."""
    return [row for row in page if row["requests"] and (agent is None or row.get("agent") == agent)]


def _total(sums: Mapping[str, int]) -> UsageTotal:
    requests, prompt_tokens, completion_tokens, cost = (sums.get(name, 0) for name in _SUMS)
    return UsageTotal(
        requests=requests,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        cost_usd=decimal_text(_usd(cost)),
    )


async def _reset_row(store: TenantStore, row: Item) -> None:
    """Reset by compare-and-swap: a call that ends meanwhile is counted before or after the reset, as a whole."""
    while row["requests"]:  # 0 after another reset, or after this one if its reply was lost
        update = Update(
            Key(cast(str, row["pk"]), cast(str, row["sk"])),
            set=dict.fromkeys(_SUMS, 0),
            add={"cost_before_reset": row["cost"]},
            when=AllOf(tuple(Equals(name, row[name]) for name in _SUMS)),
        )
        try:
            await store.table.write(update)
        except ConditionFailed as failure:
            row = failure.item or {"requests": 0}
        else:
            return


def _days(query: UsageQuery) -> tuple[date, date]:
    """Return the first and the last day of the query. Include tomorrow, because the clock of another process may be ahead."""
    today = date.fromisoformat(now()[:10])
    first = max(query.first or date.min, today - timedelta(days=KEEP_DAYS))
    last = min(query.last or date.max, today + timedelta(days=1))
    if query.first and query.last and query.last < query.first:
        raise InvalidRequest("'to' is before 'from'.", param="to")
    return first, last


async def _each_page(store: TenantStore, first: date, last: date, work: Callable[[list[Item]], Awaitable[None]]) -> None:
    """Call ``work`` with each page of rows of these days. Read several months concurrently."""
    months = _months(first, last)

    async def read_months() -> None:
        for month in months:  # the concurrent readers share this iterator
            after = first.isoformat() if first.isoformat().startswith(month) else None
            async for page in _month(store, month, after):
                rows = [row for row in page if cast(str, row["day"]) <= last.isoformat()]
                await work(rows)
                if len(rows) < len(page):
                    break

    await run_concurrently([read_months() for _ in range(_CONCURRENCY)])


def _month(store: TenantStore, month: str, after: str | None = None) -> AsyncIterator[list[Item]]:
    return store.table.pages(keys.usage_partition(store.tenant, month), after=after, size=_PAGE_ROWS)


def _months(first: date, last: date) -> Iterator[str]:
    day = first.replace(day=1)
    while day <= last:
        yield day.isoformat()[:7]
        day = (day + timedelta(days=31)).replace(day=1)


def _usd(cost: int) -> Decimal:
    return Decimal(cost).scaleb(-_DIGITS).normalize()
