"""Admissions through one shared limit, on an emulated AWS.

    python -m bench.limits [--admissions N]

An admission is one call's reservation and its settlement, of tokens, a place and money at once, in one item of the table. They
are made one at a time, 16 at once by one worker, and 16 at once by as many workers that know nothing of each other. The emulator
answers one call after the other, in some milliseconds: its rate is a floor. The table calls are what DynamoDB would count too.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Final

from bench.stage import emulated_aws
from spass.aws.clients import Aws
from spass.aws.faults import FaultPlan, inject
from spass.aws.keys import backend_limit
from spass.aws.limits import Caps, Full, SharedLimit

TO_REACH: Final = 2.0
AT_ONCE: Final = 16
# One shard, and so much room that nobody is refused.
CAPS: Final = Caps(1_999_999, 63, Decimal(999))
TOKENS: Final = 1
USD: Final = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    per_second: float
    calls: float
    p50_ms: float


async def admit(limit: SharedLimit, number: int) -> float:
    began = time.perf_counter()
    hold = await limit.reserve(f"call-{number}", tokens=TOKENS, usd=USD)
    if isinstance(hold, Full):
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
    print(f"{'':24} {'admissions/s':>12} {'p50 ms':>8} {'table calls per admission':>26}")
    for result in results:
        print(f"{result.name:24} {result.per_second:12.0f} {result.p50_ms:8.2f} {result.calls:26.3f}")
    print(f"\none at a time, an admission takes {results[0].calls:.3f} table calls (to reach: at most {TO_REACH:.0f})")


if __name__ == "__main__":
    main()
