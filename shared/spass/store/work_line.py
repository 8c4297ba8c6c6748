"""Bound the work of each tenant on a shared queue and with its workers: what exceeds the bound waits in the table, in order.

A piece of work that is *out* has a place: its message is on the queue, or a worker has it. One item for each tenant has the names
of the pieces that are out. A tenant without work has no item. What waits is in the tenant's own part of the table, in order. The
worker that gives a place back sends what waits next.

A tenant has places for half of the workers at most if there are other tenants, and there is one worker more than two halves. So a
worker is free for the first piece of another tenant. The bucket sends the events of files past this line; a free worker that
receives one without a place moves it into the line.

Names make each step safe to repeat: a place is taken and given back once. Sending may happen twice after a crash, and a worker
that gets a message twice finds its work begun or over.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId, random_suffix
from spass.core.jobs import WorkKind
from spass.store import keys
from spass.store.jobs import TenantJobs
from spass.store.table import ConditionFailed, GuardedTable
from spass.store.writes import Absent, AtMost, Contains, Delete, Equals, HasSize, Item, Lacks, Put, Update, Value

_ITEMS_PER_READ: Final = 8
"""Waiting pieces of one read. Most of the first ones may be in the hands of others that give places back at the same time."""

WorkBound: TypeAlias = Callable[[TenantId, WorkKind], int]
"""Return how many pieces of work of a kind a tenant may have out."""


def default_work_bound(_: TenantId, __: WorkKind) -> int:
    """Return the bound in a process that does not know those of the operator."""
    return 8


class _Place(Enum):
    """The result of taking a place. ``PRESENT``: the piece had one before."""

    TAKEN = 1
    PRESENT = 2
    NONE = 3


@dataclass(frozen=True, slots=True)
class WorkLine:
    """The work of one tenant.

    Raises:
        StorageUnavailable: the table or the queue does not answer. Repeat the call; the sweep also sends what waits.
    """

    tenant: TenantId
    table: GuardedTable
    shared: GuardedTable
    jobs: TenantJobs
    bound: WorkBound

    async def take(self, kind: WorkKind, name: str) -> bool:
        """Take a place for the piece of work ``name``, or keep the one that it has. Return False if all places of the tenant are
        taken, or other work of it waits. After an error, whether a place was taken is unknown."""
        return await self._take(kind, name, behind_line=True) is not _Place.NONE

    async def wait(self, kind: WorkKind, name: str, order: str, body: str, *, is_repeated: bool = False) -> None:
        """Put a piece of work without a place into the line, and send what waits if there is a place by now. ``order`` sorts the
        line. ``body`` is the message that is sent. A second call has no effect. ``is_repeated``: as for ``give_back``."""
        key = keys.waiting_work(self.tenant, kind, f"{order}#{name}")
        await self.table.write(Put(key, {"name": name, "body": body}))
        # The mark comes after the item: who gives a place back sees the mark, and then finds the item. It is a new value
        # each time: a worker that saw the line empty must not remove the mark of a piece that came after that.
        item = await self._mark(kind)
        if is_repeated or _count(item) < self.bound(self.tenant, kind):
            await self._send_waiting(kind, (item or {}).get("waits"), is_repair=is_repeated)

    async def give_back(self, kind: WorkKind, name: str, *, is_repeated: bool = False) -> None:
        """Give back the place of ``name``, if it has one, and send what waits. ``is_repeated``: an earlier attempt may have died
        after it had taken a place for the next piece, so send that once more."""
        key = keys.work_places(kind, self.tenant)
        is_last = Contains("out", name) & HasSize("out", 1) & Absent("waits")
        try:
            await self.shared.write(Delete(key, is_last))
        except ConditionFailed as failure:
            item = failure.item
        else:
            return
        if name in _names(item):
            item = await self._discard(kind, name)
        if item is not None and "waits" in item:
            await self._send_waiting(kind, item["waits"], is_repair=is_repeated)

    async def waiting(self, kind: WorkKind) -> frozenset[str]:
        """Return the names of what waits."""
        return frozenset(str(item["name"]) for item in await self.table.query(keys.waiting_partition(self.tenant, kind)))

    async def repair(self, kind: WorkKind, is_over: Callable[[str], Awaitable[bool]]) -> None:
        """Give back the places of work that ``is_over``, whose workers died before they did it. Send what waits, as far as there
        are places, also what such a worker should have sent. This is for the sweep."""
        item = await self.shared.get(keys.work_places(kind, self.tenant))
        for name in sorted(_names(item)):
            if await is_over(name):
                await self.give_back(kind, name)
        await self._send_waiting(kind, (item or {}).get("waits"), is_repair=True)

    async def _take(self, kind: WorkKind, name: str, *, behind_line: bool = False) -> _Place:
        """Take a place if one is free. ``behind_line``: only if nothing waits."""
        taker = random_suffix()
        is_free = Absent("count") | AtMost("count", self.bound(self.tenant, kind) - 1)
        when = Lacks("out", name) & is_free
        update = Update(
            keys.work_places(kind, self.tenant),
            set={"taker": taker},
            add={"out": frozenset({name}), "count": 1},
            when=when & Absent("waits") if behind_line else when,
        )
        try:
            await self.shared.write(update)
        except ConditionFailed as failure:
            if name not in _names(failure.item):
                return _Place.NONE
            # After a lost reply, the call was repeated and found what it had written itself.
            is_mine = failure.item is not None and failure.item.get("taker") == taker
            return _Place.TAKEN if is_mine else _Place.PRESENT
        return _Place.TAKEN

    async def _send_waiting(self, kind: WorkKind, waits: Value, *, is_repair: bool) -> None:
        """Send what waits, in order, as far as there are places. ``waits`` is the tenant's mark as it was just read,
        or None: then there is one at the end if something still waits."""
        after: str | None = None
        is_emptied = True
        while True:
            items = await self.table.query(keys.waiting_partition(self.tenant, kind), after=after, limit=_ITEMS_PER_READ)
            for item in items:
                place = await self._take(kind, str(item["name"]))
                if place is _Place.NONE:
                    if waits is None:  # the process died that had put it into the line
                        await self._mark(kind)
                    return
                if place is _Place.TAKEN or is_repair:
                    await self._send(kind, item, place)
                else:  # another worker is sending it
                    is_emptied = False
            if len(items) < _ITEMS_PER_READ:
                break
            after = str(items[-1]["sk"])
        if waits is not None and is_emptied:
            await self._forget_waits(kind, waits)

    async def _mark(self, kind: WorkKind) -> Item | None:
        """Let those who give places back see that something waits. Return the tenant's item."""
        return await self.shared.write(Update(keys.work_places(kind, self.tenant), set={"waits": random_suffix()}))

    async def _discard(self, kind: WorkKind, name: str) -> Item | None:
        """Remove the place of ``name``, if it has one. Return the tenant's item as it is then."""
        key = keys.work_places(kind, self.tenant)
        discard = Update(key, discard={"out": frozenset({name})}, add={"count": -1}, when=Contains("out", name))
        try:
            return await self.shared.write(discard)
        except ConditionFailed as failure:
            return failure.item

    async def _send(self, kind: WorkKind, item: Item, place: _Place) -> None:
        """Send a piece of work that has a place now. It leaves the line after that, so that a crash in between loses nothing."""
        try:
            await self.jobs.send_body(kind, str(item["body"]))
        except StorageUnavailable:
            if place is _Place.TAKEN:  # the next attempt must not take it for one that another worker is sending
                with suppress(StorageUnavailable):
                    await self._discard(kind, str(item["name"]))
            raise
        await self.table.write(Delete(keys.Key(str(item["pk"]), str(item["sk"]))))

    async def _forget_waits(self, kind: WorkKind, waits: Value) -> None:
        """Remove the mark of a line that was found empty, unless something began to wait since it was read."""
        key = keys.work_places(kind, self.tenant)
        with suppress(ConditionFailed):
            item = await self.shared.write(Update(key, remove=("waits",), when=Equals("waits", waits)))
            if not _count(item):
                await self.shared.write(Delete(key, Equals("count", 0) & Absent("waits")))


def _count(item: Item | None) -> int:
    count = (item or {}).get("count", 0)
    return count if isinstance(count, int) else 0


def _names(item: Item | None) -> set[str]:
    out = (item or {}).get("out", frozenset())
    return set(map(str, out)) if isinstance(out, set | frozenset) else set()
