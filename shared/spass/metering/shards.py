"""Choose one of several shards for a write: DynamoDB cancels concurrent transactions on the same row."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

SHARDS: Final = 16


class ShardChooser:
    """Choose the shards of one process: always the same one, so that there are few rows, and the next ones for concurrent
    writes."""

    def __init__(self) -> None:
        self._in_use: set[int] = set()

    @cached_property
    def _preferred(self) -> int:
        return os.urandom(1)[0] % SHARDS

    @contextmanager
    def choose(self) -> Iterator[int]:
        """Yield a shard to which this process is not writing, or a random one if it is writing to all of them."""
        in_order = ((self._preferred + offset) % SHARDS for offset in range(SHARDS))
        shard = next((shard for shard in in_order if shard not in self._in_use), None)
        if shard is None:
            yield os.urandom(1)[0] % SHARDS
            return
        self._in_use.add(shard)
        try:
            yield shard
        finally:
            self._in_use.discard(shard)
