"""The settings of the ingest, and leases on an upload or a part, so that a message that is delivered twice is not embedded twice.

Leases only save work. Even without them each document is stored once, because a batch and its part's position are written in one
transaction.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spass.core.ids import random_suffix
from spass.core.time import now_s
from spass.rag.index.documents import MAX_DOCUMENTS, MAX_UPLOAD_BYTES
from spass.store.keys import Key
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, AtMost, Condition, Equals, Exists, Item, Update, Value

LEASE: Final = ("owner", "message", "lease_until")
"""The attributes of a lease. They are part of the leased item."""


class MessageDone(Exception):
    """Ends the work on a message that is done. ``keeps_place``: another message continues the work, and has its place among the
    tenant's files."""

    def __init__(self, *, keeps_place: bool = False) -> None:
        super().__init__()
        self.keeps_place = keeps_place


class MessageRedelivered(Exception):
    """Ends the work on a message that the queue must deliver again."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """The sizes and times of the ingest.

    Attributes:
        max_file_bytes: a larger file is refused.
        small_bytes: a file of at most this size is one part. The worker that plans the file also ingests it.
        part_bytes: the size of the parts of a larger file.
        batch_documents: the number of documents that are appended together.
        max_refused: the largest number of documents of a part that the embedding model may refuse. If it refuses more, the
            worker assumes that the model is broken and not the documents.
        retry_pause_seconds: the maximum pause before each retry after a temporary error, one number per retry. After the last
            retry, the queue delivers the message again.
        lease_seconds: the time until a lease expires if it is not renewed.
        clock: returns the current time, in seconds since the epoch, to decide if a lease has expired.
    """

    max_file_bytes: int = MAX_UPLOAD_BYTES
    small_bytes: int = 16 * 2**20
    part_bytes: int = 8 * 2**20
    batch_documents: int = MAX_DOCUMENTS
    max_refused: int = 20
    retry_pause_seconds: tuple[float, ...] = (5.0, 20.0, 60.0)
    lease_seconds: int = LEASE_SECONDS
    clock: Callable[[], int] = now_s


@dataclass(frozen=True, slots=True)
class MessageLease:
    """The lease of a worker that received ``message`` from the queue. Each one has a different ``owner`` id."""

    message: str
    settings: IngestSettings
    owner: str = field(default_factory=random_suffix)

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of a lease that begins now."""
        return {"owner": self.owner, "message": self.message, "lease_until": self._lease_end()}

    def may_lease(self) -> Condition:
        """Return the condition that the item has no lease, an expired lease, or this lease."""
        return Absent("lease_until") | AtMost("lease_until", self.settings.clock()) | Equals("owner", self.owner)

    def refusal(self, item: Item) -> MessageDone | MessageRedelivered:
        """Return the exception for an ``item`` that another worker has leased.

        If that worker has the same message, it may be dead, and the queue must deliver the message again. If it has another
        message, this one is done: if that worker dies, the queue delivers its own message again.
        """
        return MessageRedelivered() if item.get("message") == self.message else MessageDone(keeps_place=True)

    async def renew(self, store: TenantStore, key: Key) -> None:
        """Extend the lease on the item ``key``. Raise ``ConditionFailed`` if another worker has leased the item, or this worker
        has released it."""
        is_owner = Equals("owner", self.owner) & Exists("lease_until")
        await store.table.write(Update(key, set={"lease_until": self._lease_end()}, when=is_owner))

    async def release(self, store: TenantStore, key: Key, **changes: str) -> None:
        """Release the lease and set the attributes ``changes`` of the item.

        The attribute ``owner`` stays on the item, so that a retry after a lost reply succeeds.

        Raises:
            LeaseLost: another worker has the lease.
        """
        released = Update(key, set=changes, remove=("message", "lease_until"), when=Equals("owner", self.owner))
        try:
            await store.table.write(released)
        except ConditionFailed:
            raise LeaseLost("Another worker has this file.", retry_after=1) from None

    def _lease_end(self) -> int:
        return self.settings.clock() + self.settings.lease_seconds


DEFAULTS: Final = IngestSettings()
