"""A table in memory for tests of limits. It needs no threads, so a test controls the order of all calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from spass.store.evaluation import apply_update, holds
from spass.store.invocation import ServiceCall, retry_once
from spass.store.keys import Key
from spass.store.table import ConditionFailed
from spass.store.writes import Item, Update
from spass.testing.faults import FaultPlan

T = TypeVar("T")


@dataclass
class MemoryTable:
    """A ``LimitTable``. ``plan`` injects faults. ``calls`` counts all calls, also failed ones. ``watch`` is called with the item
    before and after each write that takes effect."""

    items: dict[Key, Item] = field(default_factory=dict)
    plan: FaultPlan | None = None
    calls: int = 0
    watch: Callable[[Item, Item], None] = lambda before, after: None

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._call("GetItem", lambda: self.items.get(key))

    async def write(self, write: Update) -> Item | None:
        return await self._call("UpdateItem", lambda: self._update(write))

    async def _call(self, operation: str, run: Callable[[], T]) -> T:
        async def send() -> T:
            return run()

        async def call() -> T:
            self.calls += 1
            return await self.plan.around(ServiceCall("dynamodb", operation, {}), send) if self.plan else run()

        return await retry_once(call)

    def _update(self, write: Update) -> Item:
        before = self.items.get(write.key)
        if not holds(write.when, before):
            raise ConditionFailed(before)
        after = self.items[write.key] = apply_update(write, before)
        self.watch(before or {}, after)
        return after
