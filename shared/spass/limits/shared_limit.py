"""Limits that all workers share through the table: tokens a minute, calls at once, money a month.

Reserve, call, settle: reserving and settling are usually one conditional update each. The item holds the call's id, so both take
effect once, however often they are sent. A dead worker's reservation ends with its lease, and its tokens with the minute. Its
money stays counted, because the provider probably billed it.

A large limit has several items (shards), each with its part of the caps. A process prefers one of them and uses the others when
that one is full.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from secrets import token_urlsafe
from typing import Final

import anyio

from spass.aws.keys import Key
from spass.aws.table import ConditionFailed
from spass.aws.tasks import run_concurrently
from spass.aws.writes import Exists, Update
from spass.core.errors import StorageUnavailable
from spass.limits.shard import LimitTable, Reservation, Shard
from spass.limits.shard_state import Caps, NoCapacity, ReservationRequest

# A shard's part stays far larger than one call.
_TOKENS_A_SHARD: Final = 1_000_000
_CALLS_A_SHARD: Final = 32
_USD_A_SHARD: Final = 500
_MOST_SHARDS: Final = 16

_SMALLEST: Final = Decimal("1e-12")  # dollars


def new_call_id() -> str:
    """Return an id for a reservation. It is short because an item holds the id of each call in flight. Among 1,000 calls, one in
    seventy million has the id of another and is counted with it."""
    return token_urlsafe(5)[:6]


class SharedLimit:
    """The limit of one thing. Keep the object: its cached state saves a read.

    ``partition`` returns the key of a shard. ``spent_before`` returns what a month (``2026-11``) has cost by other records: the
    opening balance.
    """

    def __init__(
        self,
        table: LimitTable,
        partition: Callable[[int], Key],
        caps: Caps,
        *,
        clock: Callable[[], float] = time.time,
        spent_before: Callable[[str], Awaitable[Decimal]] | None = None,
    ) -> None:
        self._clock = clock
        self._spent_before = spent_before
        self._shards = [Shard(table, partition(number), share, clock) for number, share in enumerate(_shares(caps))]
        self._preferred_shard = random.choice(self._shards)  # noqa: S311 (spreads load)
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    async def reserve(
        self, call_id: str, *, tokens: int, usd: Decimal = Decimal(0), seconds: float | None = None
    ) -> Reservation | NoCapacity:
        """Reserve ``tokens`` (at most the cap) and ``usd`` for the call ``call_id``, or return why there is no room.

        A reservation that takes longer than ``seconds`` is given back once it is made.

        Raises:
            StorageUnavailable: the table did not answer in time; what was reserved ends with its lease and the window.
        """
        making = asyncio.ensure_future(self._reserve(ReservationRequest(call_id, tokens, usd)))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(making)
        except TimeoutError:
            self._give_back(making)
            raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1) from None
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._give_back(making)}, timeout=seconds)
            raise

    def _give_back(self, making: asyncio.Future[Reservation | NoCapacity]) -> asyncio.Task[None]:
        """Settle what ``making`` reserves, because its caller has gone."""

        async def settle() -> None:
            await asyncio.wait({making})
            if not making.cancelled() and making.exception() is None and isinstance(made := making.result(), Reservation):
                await made.settle(tokens=0)

        task = asyncio.create_task(settle())
        self._cleanup_tasks.add(task)
        task.add_done_callback(self._cleanup_tasks.discard)
        return task

    async def _reserve(self, request: ReservationRequest) -> Reservation | NoCapacity:
        others = [shard for shard in self._shards if shard is not self._preferred_shard]
        random.shuffle(others)
        full: list[NoCapacity] = []
        for shard in (self._preferred_shard, *others):
            answer = await shard.reserve(request, partial(self._opening, shard))
            if isinstance(answer, Reservation):
                return answer
            full.append(answer)
        return min(full, key=lambda reason: reason.retry_after)

    async def count_in_flight(self, max_age: float = 1.0) -> int:
        """Return the number of calls in flight, at most ``max_age`` seconds old.

        Raises:
            StorageUnavailable: the table did not answer.
        """
        return sum(await asyncio.gather(*(shard.count_in_flight(max_age) for shard in self._shards)))

    @property
    def spent(self) -> Decimal:
        """Return the cost of the month by the cached states, reservations included. After a full budget each shard has one."""
        return sum((shard.spent for shard in self._shards), Decimal(0))

    async def _opening(self, opened: Shard, month: str) -> Decimal:
        """Return the opening balance of ``opened``: its part of the cost that no shard has counted yet, at most its budget."""
        if self._spent_before is None:
            return Decimal(0)
        left, uncounted = await self._spent_before(month), 1
        for shard in self._shards:
            if shard is opened:
                continue
            state = await shard.read()
            if state.month == month:
                left -= min(state.spent, shard.budget)
            else:
                uncounted += 1
        part = max(Decimal(0), left / uncounted).quantize(_SMALLEST)
        return part if len(self._shards) == 1 else min(part, opened.budget)


async def forget_spending(table: LimitTable, partition: Callable[[int], Key]) -> None:
    """Let the next reservation sum up the month's cost again, because it was not counted while there was no budget.

    Raises:
        StorageUnavailable: the table did not answer.
    """

    async def forget(number: int) -> None:
        with suppress(ConditionFailed):
            await table.write(Update(partition(number), remove=("budget",), when=Exists("budget")))

    await run_concurrently([forget(number) for number in range(_MOST_SHARDS)])


def _shares(caps: Caps) -> list[Caps]:
    """Return the caps of each shard; their sum is ``caps``."""
    tokens, concurrent, usd = caps.tokens_per_minute, caps.concurrent, caps.usd_per_month
    called_for = [
        int(cap // a_shard)
        for cap, a_shard in ((tokens, _TOKENS_A_SHARD), (concurrent, _CALLS_A_SHARD), (usd, _USD_A_SHARD))
        if cap is not None
    ]
    count = max(1, min(*called_for, _MOST_SHARDS)) if called_for else 1
    return [
        Caps(
            None if tokens is None else (tokens + number) // count,
            None if concurrent is None else (concurrent + number) // count,
            None if usd is None else usd / count,
        )
        for number in range(count)
    ]
