"""What a tenant's model calls took, by day, agent, model and user: counted with each call's record, summed up when asked for.

A call counts as a request when its model answered it, began to, or may have billed an answer that was lost. Any other call cost
nothing. A row is kept for 400 days. Resetting takes away what is shown, never the money that the month has cost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, TypeAlias, cast

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.table import TTL, ConditionFailed
from spass.aws.tasks import run_concurrently
from spass.aws.writes import AllOf, Equals, Update
from spass.core.errors import InvalidRequest
from spass.core.ids import AgentName, TenantId
from spass.core.time import now
from spass.metering.pricing import decimal_text
from spass.tenancy.response_model import Count, DecimalText, ResponseModel

KEEP_DAYS: Final = 400
MAX_GROUPS: Final = 10_000

_DIGITS: Final = 12  # a row counts money in millionths of a millionth of a dollar: whole numbers are summed up alike everywhere
_PAGE: Final = 1000
_AT_ONCE: Final = 8  # months that are read, and rows that are reset
_DAY_SECONDS: Final = 24 * 3600
_SUMS: Final = ("requests", "prompt_tokens", "completion_tokens", "cost")

GroupBy: TypeAlias = Literal["agent", "model", "user", "day"]


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which calls (of ``agent``, from the day ``first`` to the day ``last``, both included, in UTC), and summed up by what."""

    group_by: GroupBy = "agent"
    agent: AgentName | None = None
    first: date | None = None
    last: date | None = None


class UsageTotal(ResponseModel):
    """What calls of models took."""

    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    cost_usd: DecimalText


class UsageGroup(UsageTotal):
    """What the calls of one agent, model, user or day took. `key` is null for calls that no agent or user made."""

    key: str | None


class UsageReport(ResponseModel):
    """What calls of models took, by group and in total."""

    usage: list[UsageGroup]
    total: UsageTotal


class Reset(ResponseModel):
    """Whether the counters were reset."""

    reset: bool


async def usage(store: TenantStore, query: UsageQuery) -> UsageReport:
    """Return what the calls took, by group and in total.

    Raises:
        InvalidRequest: the last day is before the first, or there are more groups than one answer may hold.
        StorageUnavailable: the table does not answer.
    """
    first, last = _days(query)
    groups: dict[str | None, _Sum] = {}
    total = _Sum()

    async def sum_up(page: list[Item]) -> None:
        for row in _shown(page, query.agent):
            groups.setdefault(cast("str | None", row.get(query.group_by)), _Sum()).add(row)
            total.add(row)
        if len(groups) > MAX_GROUPS:
            raise InvalidRequest(f"There are more than {MAX_GROUPS} groups; ask for fewer days.", param="from")

    await _each_page(store, first, last, sum_up)
    in_order = sorted(groups.items(), key=lambda group: (group[0] is None, group[0] or ""))
    shown = [UsageGroup(key=key, **one.total().to_dict()) for key, one in in_order]
    return UsageReport(usage=shown, total=total.total())


async def reset(store: TenantStore, agent: AgentName | None = None) -> int:
    """Set what is shown, of ``agent`` or of all, back to nothing; how many rows that took. Calls that end meanwhile are counted
    before or after it, whole.

    Raises:
        StorageUnavailable: the table does not answer; part of it may be done.
    """
    first, last = _days(UsageQuery())
    slots = asyncio.Semaphore(_AT_ONCE)
    count = 0

    async def reset_rows(page: list[Item]) -> None:
        nonlocal count
        rows = _shown(page, agent)
        await run_concurrently([_reset_row(store, row, slots) for row in rows])
        count += len(rows)

    await _each_page(store, first, last, reset_rows)
    return count


async def spending_of_month(store: TenantStore, month: str) -> Decimal:
    """Return the US dollars that the calls of ``month`` (``2026-04``) have cost, in spite of resets.

    Raises:
        StorageUnavailable: the table does not answer.
    """
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
    said = {name: cast(str, record[name]) for name in ("agent", "model", "user") if record.get(name)}
    fixed: dict[str, Value] = {"day": day, **said, TTL: _expiry(day)}
    sums: dict[str, Value] = {"requests": 1, "prompt_tokens": tokens[0], "completion_tokens": tokens[1], "cost": cost}
    return Update(
        keys.usage(tenant, day, said.get("agent", ""), said.get("model", ""), said.get("user", ""), shard),
        set=fixed,
        add=sums,
    )


def _shown(page: Iterable[Item], agent: AgentName | None) -> list[Item]:
    """Return the rows of ``agent``, or of all agents, with requests since their last reset."""
    return [row for row in page if row["requests"] and (agent is None or row.get("agent") == agent)]


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0

    def add(self, row: Item) -> None:
        self.requests += cast(int, row["requests"])
        self.prompt_tokens += cast(int, row["prompt_tokens"])
        self.completion_tokens += cast(int, row["completion_tokens"])
        self.cost += cast(int, row["cost"])

    def total(self) -> UsageTotal:
        return UsageTotal(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            cost_usd=decimal_text(_usd(self.cost)),
        )


async def _reset_row(store: TenantStore, row: Item, slots: asyncio.Semaphore) -> None:
    """Reset by compare-and-swap: a call that ends meanwhile is counted before or after the reset, as a whole."""
    async with slots:
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
    """Return the first and the last day of the query. A process whose clock is ahead may have counted into tomorrow."""
    today = date.fromisoformat(now()[:10])
    first = max(query.first or date.min, today - timedelta(days=KEEP_DAYS))
    last = min(query.last or date.max, today + timedelta(days=1))
    if query.first and query.last and query.last < query.first:
        raise InvalidRequest("'to' is before 'from'.", param="to")
    return first, last


async def _each_page(store: TenantStore, first: date, last: date, work: Callable[[list[Item]], Awaitable[None]]) -> None:
    """Call ``work`` with each page of rows of these days; several months are read at once."""
    left = _months(first, last)

    async def take_months() -> None:
        for month in left:  # which the others take from too
            after = first.isoformat() if first.isoformat().startswith(month) else None
            async for page in _month(store, month, after):
                rows = [row for row in page if cast(str, row["day"]) <= last.isoformat()]
                await work(rows)
                if len(rows) < len(page):
                    break

    await run_concurrently([take_months() for _ in range(_AT_ONCE)])


async def _month(store: TenantStore, month: str, after: str | None = None) -> AsyncIterator[list[Item]]:
    while page := await store.table.query(keys.usage_partition(store.tenant, month), after=after, limit=_PAGE):
        yield page
        if len(page) < _PAGE:
            return
        after = cast(str, page[-1]["sk"])


def _months(first: date, last: date) -> Iterator[str]:
    day = first.replace(day=1)
    while day <= last:
        yield day.isoformat()[:7]
        day = (day + timedelta(days=31)).replace(day=1)


def _usd(cost: int) -> Decimal:
    return Decimal(cost).scaleb(-_DIGITS).normalize()


def _expiry(day: str) -> int:
    """Return the Unix second after which the row of ``day`` expires."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) + (KEEP_DAYS + 1) * _DAY_SECONDS
