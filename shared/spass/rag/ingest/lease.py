"""Leases on an upload or on one of its parts, so that a file whose message is delivered twice is not embedded twice.

Leases only save work. Even without them each document is stored once, because a batch and its part's position are written in one
transaction.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.leases import LEASE_SECONDS
from spass.aws.table import ConditionFailed
from spass.aws.writes import Absent, AtMost, Condition, Equals, Exists, Update
from spass.core.ids import random_suffix
from spass.core.time import now_s

LEASE: tuple[str, ...] = ("owner", "message", "lease_until")
"""The attributes of a lease. They are part of the leased item."""


class Refusal(Enum):
    """The reason why an upload or a part cannot be leased."""

    ENDED = auto()  # it is finished
    LEASED = auto()  # by the worker of another message; if that worker dies, the queue delivers its message again
    LEASED_FOR_THIS_MESSAGE = auto()  # by an earlier receiver of the same message, which may be dead


@dataclass(frozen=True, slots=True)
class Receiver:
    """A worker that received ``message`` from the queue. Each receiver has a different ``owner`` id."""

    message: str
    owner: str = field(default_factory=random_suffix)

    def lease(self) -> dict[str, Value]:
        """Return the attributes of a lease that begins now."""
        return {"owner": self.owner, "message": self.message, "lease_until": now_s() + LEASE_SECONDS}

    def may_lease(self) -> Condition:
        """Return the condition that the item has no lease, an expired lease, or a lease of this receiver."""
        return Absent("lease_until") | AtMost("lease_until", now_s()) | Equals("owner", self.owner)

    def refusal(self, item: Item) -> Refusal:
        """Return the reason why ``item``, which another receiver has leased, cannot be leased."""
        return Refusal.LEASED_FOR_THIS_MESSAGE if item.get("message") == self.message else Refusal.LEASED


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease that ``owner`` has on the item ``key``."""

    store: TenantStore
    key: Key
    owner: str

    async def renew(self) -> None:
        """Extend the lease: it ends ``LEASE_SECONDS`` from now.

        Raises:
            ConditionFailed: another worker has leased the item, or this worker has released it.
        """
        changes: dict[str, Value] = {"lease_until": now_s() + LEASE_SECONDS}
        is_owner = Equals("owner", self.owner) & Exists("lease_until")
        await self.store.table.write(Update(self.key, set=changes, when=is_owner))

    async def release(self, **changes: str) -> bool:
        """Release the lease and set the attributes ``changes`` of the item. Return False if another worker has the lease.

        The attribute ``owner`` stays on the item, so that a retry after a lost reply succeeds.
        """
        attributes = ("message", "lease_until")
        try:
            await self.store.table.write(Update(self.key, set=changes, remove=attributes, when=Equals("owner", self.owner)))
        except ConditionFailed:
            return False
        return True
