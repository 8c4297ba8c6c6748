"""Limits that all workers share through the table: tokens a minute, calls at once, money a month.

Reserve, call, settle: the first and the last are one conditional update of one item each, in the usual case. A hold names the
call in the item, so that both take effect once however often they are sent. Who dies leaves nothing behind for long: its place
falls free with its lease, its tokens pass with the minute. Its money stays counted, for it was probably billed.

What is hot is spread over several items (shards), each with its part of the caps; a process has a favourite among them and goes
on to the others when that one is full.
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
from spass.limits.shard import LimitTable, Reservation, Shard, renew_while_running
from spass.limits.shard_state import Caps, NoCapacity, ReservationRequest

__all__ = [
    "Caps",
    "LimitTable",
    "NoCapacity",
    "Reservation",
    "SharedLimit",
    "forget_spending",
    "new_call_id",
    "renew_while_running",
]

# A shard's part stays far larger than one call.
_TOKENS_A_SHARD: Final = 1_000_000
_PLACES_A_SHARD: Final = 32
_USD_A_SHARD: Final = 500
_MOST_SHARDS: Final = 16

_SMALLEST: Final = Decimal("1e-12")  # dollars


def new_call_id() -> str:
    """Return a name for a reservation. It is short because an item holds one for each call under way: of 1,000, one in seventy
    million has another's name, and is then counted with that one."""
    return token_urlsafe(5)[:6]


class SharedLimit:
    """The limit of one thing. Keep it: it remembers what it saw last, which saves a call.

    ``partition`` gives the key of a shard; ``spent_before`` what a month (``2026-11``) has cost so far by other records, asked
    when the month or a budget is first counted.
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
        self._favourite = random.choice(self._shards)  # noqa: S311 (spreads load)
        self._late: set[asyncio.Task[None]] = set()

    async def reserve(
        self, call_id: str, *, tokens: int, usd: Decimal = Decimal(0), seconds: float | None = None
    ) -> Reservation | NoCapacity:
        """Room for a call that takes ``tokens`` (more than the cap count as the cap) and ``usd``, or why there is none.
        ``call_id`` names this reservation and no other. What takes longer than ``seconds`` is given back when it has ended.

        Raises:
            StorageUnavailable: the table did not answer in time; nothing is held but what lease and window give back.
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
        """Whatever ``making`` comes to, nobody has it."""

        async def settle() -> None:
            await asyncio.wait({making})
            if not making.cancelled() and making.exception() is None and isinstance(hold := making.result(), Reservation):
                await hold.settle(tokens=0)

        task = asyncio.create_task(settle())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    async def _reserve(self, asked: ReservationRequest) -> Reservation | NoCapacity:
        others = [shard for shard in self._shards if shard is not self._favourite]
        random.shuffle(others)
        full: list[NoCapacity] = []
        for shard in (self._favourite, *others):
            answer = await shard.reserve(asked, partial(self._opening, shard))
            if isinstance(answer, Reservation):
                return answer
            full.append(answer)
        return min(full, key=lambda reason: reason.retry_after)

    async def count_in_flight(self, max_age: float = 1.0) -> int:
        """How many calls are under way, as it was at most ``max_age`` seconds ago.

        Raises:
            StorageUnavailable: the table did not answer.
        """
        return sum(await asyncio.gather(*(shard.count_in_flight(max_age) for shard in self._shards)))

    @property
    def spent(self) -> Decimal:
        """What the month has cost, as the shards said last, reservations included: all of them have, when a budget was full."""
        return sum((shard.spent for shard in self._shards), Decimal(0))

    async def _opening(self, opened: Shard, month: str) -> Decimal:
        """What ``opened`` begins to count the month's money with: its part of what no shard has counted yet. What is more than
        its share takes the room of the others."""
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
    """Has the month's money summed up anew before the next reservation: while there was no budget, nobody counted it.

    Raises:
        StorageUnavailable: the table did not answer.
    """

    async def forget(number: int) -> None:
        with suppress(ConditionFailed):
            await table.write(Update(partition(number), remove=("budget",), when=Exists("budget")))

    await run_concurrently([forget(number) for number in range(_MOST_SHARDS)])


def _shares(caps: Caps) -> list[Caps]:
    """The caps of each shard; together they are ``caps``."""
    tokens, places, usd = caps.tokens_per_minute, caps.concurrent, caps.usd_per_month
    called_for = [
        int(cap // a_shard)
        for cap, a_shard in ((tokens, _TOKENS_A_SHARD), (places, _PLACES_A_SHARD), (usd, _USD_A_SHARD))
        if cap is not None
    ]
    count = max(1, min(*called_for, _MOST_SHARDS)) if called_for else 1
    return [
        Caps(
            None if tokens is None else (tokens + number) // count,
            None if places is None else (places + number) // count,
            None if usd is None else usd / count,
        )
        for number in range(count)
    ]
