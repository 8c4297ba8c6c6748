"""Admissions through one shared limit, on an emulated AWS.

    python -m bench.limits [--admissions N]

An admission is one call's reservation and its settlement, of tokens, a place and money at once, in one item of the table. They
are made one at a time, 16 at once by one worker, and 16 at once by as many workers that know nothing of each other. The emulator
answers one call after the other, in some milliseconds: its rate is a floor. The table calls are what DynamoDB would count too.

Then calls of 30 seconds are kept under way in one item, each by a worker of its own, in simulated time. Every write, refused ones
too, takes a unit for each KB of the item; an item takes 1,000 units a second.
"""

import argparse
import asyncio
import heapq
import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Final

from bench.meter import bytes_of_item
from bench.processes import emulated_aws
from spass.aws.clients import Aws
from spass.aws.dynamodb import attribute_of
from spass.limits.shard import LimitTable, Reservation
from spass.limits.shard_state import Caps, NoCapacity, new_call_id
from spass.limits.shared_limit import SharedLimit
from spass.store.keys import Key, backend_limit
from spass.store.leases import RENEW_SECONDS
from spass.store.table import ConditionFailed
from spass.store.writes import Item, Update
from spass.testing.faults import FaultPlan, inject

TO_REACH: Final = 2.0
AT_ONCE: Final = 16
# One shard, and limits so large that no call is refused.
CAPS: Final = Caps(1_999_999, 63, Decimal(999))
TOKENS: Final = 1
USD: Final = Decimal("0.0001")


UNDER_WAY: Final = (100, 500, 1000)
CALL_SECONDS: Final = 30.0
BEGINNING: Final = 1_800_000_000.0
MOST_UNITS: Final = 1000
_UNIT_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    per_second: float
    calls: float
    p50_ms: float


async def admit(limit: SharedLimit, number: int) -> float:
    began = time.perf_counter()
    hold = await limit.reserve(f"call-{number}", tokens=TOKENS, usd=USD)
    if isinstance(hold, NoCapacity):
        raise SystemExit(f"the limit was to have room, and says {hold}")
    await hold.settle(tokens=TOKENS, usd=USD)
    return time.perf_counter() - began


async def measure(name: str, workers: Sequence[SharedLimit], at_once: int, admissions: int) -> Result:
    for worker in workers:
        await admit(worker, -1)
    numbers = iter(range(admissions))
    seconds: list[float] = []

    async def drive(worker: SharedLimit) -> None:
        seconds.extend([await admit(worker, number) for number in numbers])

    with inject(FaultPlan()) as plan:
        began = time.perf_counter()
        await asyncio.gather(*[drive(workers[lane % len(workers)]) for lane in range(at_once)])
        took = time.perf_counter() - began
    return Result(name, admissions / took, len(plan.calls) / admissions, sorted(seconds)[len(seconds) // 2] * 1000)


class MeteredTable:
    """A table that counts the write units of its one item."""

    def __init__(self, table: LimitTable) -> None:
        self._table = table
        self.units = 0

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._table.get(key, consistent=consistent)

    async def write(self, write: Update) -> Item | None:
        try:
            item = await self._table.write(write)
        except ConditionFailed as failed:
            self._count(failed.item)
            raise
        self._count(item)
        return item

    def _count(self, item: Item | None) -> None:
        size = bytes_of_item({name: attribute_of(value) for name, value in (item or {}).items()})
        self.units += max(1, math.ceil(size / _UNIT_BYTES))


async def units_per_second(table: LimitTable, under_way: int, seconds: float = 60.0) -> float:
    """Keep a constant number of calls in flight. Return the write units per second, over ``seconds`` after the first calls have
    ended."""
    metered, now = MeteredTable(table), BEGINNING
    measured_from = BEGINNING + CALL_SECONDS
    caps = Caps(1_999_999, None, Decimal(999))
    partition = partial(backend_limit, f"under-way-{under_way}")
    workers = [SharedLimit(metered, partition, caps, clock=lambda: now) for _ in range(under_way)]
    holds: dict[int, Reservation] = {}
    events = [(BEGINNING + CALL_SECONDS * number / under_way, number, False) for number in range(under_way)]
    heapq.heapify(events)
    units_before = 0
    while events and events[0][0] < measured_from + seconds:
        now, number, renewal = heapq.heappop(events)
        if now < measured_from:
            units_before = metered.units
        if renewal:
            await holds[number].renew()
            continue
        if number in holds:
            await holds[number].settle(tokens=TOKENS, usd=USD)
        hold = await workers[number].reserve(new_call_id(), tokens=TOKENS, usd=USD)
        if isinstance(hold, NoCapacity):
            raise SystemExit(f"the limit was to have room, and says {hold}")
        holds[number] = hold
        heapq.heappush(events, (now + RENEW_SECONDS, number, True))
        heapq.heappush(events, (now + CALL_SECONDS, number, False))
    return (metered.units - units_before) / seconds


async def run(admissions: int) -> list[Result]:
    aws = Aws(table="spass", bucket="spass")

    def workers(backend: str, count: int) -> list[SharedLimit]:
        return [SharedLimit(aws.shared, partial(backend_limit, backend), CAPS) for _ in range(count)]

    return [
        await measure("one at a time", workers("one", 1), 1, admissions),
        await measure(f"{AT_ONCE} at once", workers("many", 1), AT_ONCE, admissions),
        await measure(f"{AT_ONCE} at once, {AT_ONCE} workers", workers("apart", AT_ONCE), AT_ONCE, admissions),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admissions", type=int, default=1000, help="admissions each (default 1000)")
    options = parser.parse_args()
    with ExitStack() as stack:
        os.environ |= stack.enter_context(emulated_aws())
        results = asyncio.run(run(options.admissions))
        shared = Aws(table="spass", bucket="spass").shared
        units = {under_way: asyncio.run(units_per_second(shared, under_way)) for under_way in UNDER_WAY}
    print(f"{'':24} {'admissions/s':>12} {'p50 ms':>8} {'table calls per admission':>26}")
    for result in results:
        print(f"{result.name:24} {result.per_second:12.0f} {result.p50_ms:8.2f} {result.calls:26.3f}")
    print(f"\n{'calls of 30 s under way':24} {'write units/s of their item':>28} (to reach: at most {MOST_UNITS})")
    for under_way, used in units.items():
        print(f"{under_way:24} {used:28.0f}")
    print(f"\none at a time, an admission takes {results[0].calls:.3f} table calls (to reach: at most {TO_REACH:.0f})")


if __name__ == "__main__":
    main()
