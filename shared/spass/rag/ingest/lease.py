"""Leases on an upload or on one of its parts: a file whose message is delivered twice is not embedded twice.

Leases only save work. Documents are stored once without them: each batch takes effect together with its part's position.
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
"""The attributes of a lease, on the item that is leased."""


class Refusal(Enum):
    """Why an upload or a part cannot be leased."""

    ENDED = auto()  # nothing is left to do on it
    LEASED = auto()  # by a worker with another message, which the queue delivers again if that worker dies
    LEASED_FOR_THIS_MESSAGE = auto()  # by an earlier receiver of the same message, which may be dead


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of the queue's ``message``. Each has an ``owner`` id of its own."""

    message: str
    owner: str = field(default_factory=random_suffix)

    def lease(self) -> dict[str, Value]:
        """Return the attributes of a lease that begins now."""
        return {"owner": self.owner, "message": self.message, "lease_until": now_s() + LEASE_SECONDS}

    def may_lease(self) -> Condition:
        """Return the condition that there is no lease, that it has expired, or that this worker has it."""
        return Absent("lease_until") | AtMost("lease_until", now_s()) | Equals("owner", self.owner)

    def refusal(self, item: Item) -> Refusal:
        """Return the refusal to lease ``item``, which is leased already."""
        return Refusal.LEASED_FOR_THIS_MESSAGE if item.get("message") == self.message else Refusal.LEASED


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease that ``owner`` has on the item ``key``."""

    store: TenantStore
    key: Key
    owner: str

    async def renew(self) -> None:
        """Extend the lease by another minute.

        Raises:
            ConditionFailed: another worker has the item, or this one has released it.
        """
        set_until: dict[str, Value] = {"lease_until": now_s() + LEASE_SECONDS}
        leased = Equals("owner", self.owner) & Exists("lease_until")
        await self.store.table.write(Update(self.key, set=set_until, when=leased))

    async def release(self, **changes: str) -> bool:
        """Give the lease up and set ``changes`` of the item; return False if the lease was lost before.

        The owner stays on the item: a repetition whose first reply was lost then succeeds too.
        """
        released = ("message", "lease_until")
        try:
            await self.store.table.write(Update(self.key, set=changes, remove=released, when=Equals("owner", self.owner)))
        except ConditionFailed:
            return False
        return True
