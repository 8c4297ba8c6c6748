"""What a deployment can do at the same time, for all tenants together."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Capacity:
    """The numbers of runs from the queue, of ``jobs`` (files, parts and merges), of requested compactions, and of clients that
    follow streams. None is no limit. There is one more worker of each kind, which waits for work of other tenants."""

    runs: int = 8
    jobs: int = 32
    compactions: int = 100
    followers: int | None = None


DEFAULT_CAPACITY: Final = Capacity()
