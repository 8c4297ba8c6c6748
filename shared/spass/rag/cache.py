"""What a warm process keeps of the bucket: whole objects, in memory only, under a byte budget.

Nothing cached ever changes, since a segment's objects are written once under a name that is never used again. So there is no
invalidation.
"""

import os
from collections import OrderedDict
from typing import Final, NamedTuple

from spass.core.ids import TenantId

_DEFAULT_BUDGET: Final = 256 * 2**20
_SHARE_OF_MEMORY: Final = 0.5  # the rest is for the interpreter, a scan's scores and the segment being streamed


class ObjectName(NamedTuple):
    """An object of one tenant; ``key`` is relative to the tenant's prefix and holds the index's generation."""

    tenant: TenantId
    key: str


def memory_budget() -> int:
    """Bytes the cache may hold: half of the function's memory, 256 MiB outside of Lambda."""
    megabytes = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
    return int(int(megabytes) * 2**20 * _SHARE_OF_MEMORY) if megabytes else _DEFAULT_BUDGET


class ObjectCache:
    """Bytes by object name; the least recently used go first when the budget is exceeded."""

    def __init__(self, budget: int | None = None) -> None:
        self.budget = memory_budget() if budget is None else budget
        self.held = 0
        self._bodies: OrderedDict[ObjectName, bytes] = OrderedDict()

    def get(self, name: ObjectName) -> bytes | None:
        body = self._bodies.get(name)
        if body is not None:
            self._bodies.move_to_end(name)
        return body

    def put(self, name: ObjectName, body: bytes) -> None:
        """Keep ``body`` if it fits the budget at all."""
        if len(body) > self.budget or name in self._bodies:
            return
        self._bodies[name] = body
        self.held += len(body)
        while self.held > self.budget:
            _, dropped = self._bodies.popitem(last=False)
            self.held -= len(dropped)
