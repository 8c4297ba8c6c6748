"""Choose one of several rows for a write: concurrent transactions on one row would cancel each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

SHARDS: Final = 16


class ShardChooser:
    """The choice of this process: one row, so that there are few rows, and the next ones for concurrent writes."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    @cached_property
    def _own(self) -> int:
        return os.urandom(1)[0] % SHARDS

    @contextmanager
    def choose(self) -> Iterator[int]:
        """Yield the number of a row that this process is not writing to, if there is one."""
        order = [(self._own + offset) % SHARDS for offset in range(SHARDS)]
        shard = next((shard for shard in order if shard not in self._taken), None)
        if shard is None:
            yield order[os.urandom(1)[0] % SHARDS]
            return
        self._taken.add(shard)
        try:
            yield shard
        finally:
            self._taken.discard(shard)
