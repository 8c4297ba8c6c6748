"""The items of limits in the memory of this process, for a process without a table."""

import threading

from spass.store.evaluation import apply_update, holds
from spass.store.keys import Key
from spass.store.table import ConditionFailed
from spass.store.writes import Item, Update


class ProcessTable:
    """A ``LimitTable``. Event loops of several threads may share it."""

    def __init__(self) -> None:
        self._items: dict[Key, Item] = {}
        self._lock = threading.Lock()

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        del consistent
        with self._lock:
            return self._items.get(key)

    async def write(self, write: Update) -> Item | None:
        with self._lock:
            item = self._items.get(write.key)
            if not holds(write.when, item):
                raise ConditionFailed(item)
            # ``apply_update`` copies the item: the one that ``get`` returned does not change.
            item = self._items[write.key] = apply_update(write, item)
            return item
