"""Which of several rows of the same kind a write goes into: writers that meet in one would undo each other's transactions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

SHARDS: Final = 16


class ShardChooser:
    """This process's choice. It keeps to a row of its own, so that there are few, and writes to the next ones only what it writes
    at the same time."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    @cached_property
    def _own(self) -> int:
        return os.urandom(1)[0] % SHARDS

    @contextmanager
    def free(self) -> Iterator[int]:
        """The number of a row that nobody else in this process writes to meanwhile, as long as there is one."""
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
