"""Compare-and-swap: plan a change of the current version and write it. If another writer was faster, plan it again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from spass.core.errors import SpassError, StorageUnavailable, storage_timeout
from spass.core.ids import random_suffix
from spass.core.tasks import back_off
from spass.core.time import Deadline, now_s
from spass.store import keys
from spass.store.table import TTL, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Item, Put, Update, Write

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

_MAX_BACKOFF_SECONDS: Final = 0.25  # seconds between two attempts, full jitter

_SENDS: Final = 2
_KEEP_SECONDS: Final = 3600  # longer than any process that may still read the marker


@dataclass(frozen=True, slots=True)
class Swap(Generic[A_co]):
    """One attempt. The condition of ``write`` is that the version that was read is still current. ``more`` takes effect with it;
    a condition of ``more`` may fail only because another writer was faster. ``answer`` is returned if they take effect. A
    ``Check`` changes nothing."""

    answer: A_co
    write: Put | Update | Check
    more: Sequence[Write] = ()


class Participant(Protocol[A_contra]):
    """Another party's writes in a transaction: the use of a confirm token, or the answer to store for an idempotency key."""

    async def writes(self, answer: A_contra, /) -> Sequence[Write]:
        """Return the writes to add to the transaction. ``answer`` is the answer of the swap."""

    def refusal(self) -> SpassError:
        """Return the error to raise when a condition of these writes fails. The transaction then had no effect."""


async def swap(
    store: TenantStore,
    plan: Callable[[], Awaitable[Swap[A]]],
    deadline: Deadline,
    participant: Participant[A] | None = None,
) -> A:
    """Commit the change that ``plan`` returns, together with the participant's writes, and return its answer. When another writer
    was faster, plan again.

    Raises:
        StorageUnavailable: the table does not answer, or other writers were faster until the deadline.
        SpassError: what ``plan`` raises, or the participant's refusal.
    """
    while True:
        attempt = await plan()
        if participant is None:
            if isinstance(attempt.write, Check):
                return attempt.answer
            writes: Sequence[Write] = (attempt.write, *attempt.more)
        else:
            writes = (attempt.write, *attempt.more, *await participant.writes(attempt.answer))
        failures = await commit(store, writes)
        if not failures:
            return attempt.answer
        if participant is not None and max(failures) > len(attempt.more):
            raise participant.refusal()
        if not deadline.remaining():
            raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)
        await back_off(_MAX_BACKOFF_SECONDS)


async def commit(store: TenantStore, writes: Sequence[Write]) -> Mapping[int, Item | None]:
    """Do all of ``writes`` or none, once. Return the position of each write whose condition failed, with its stored item. The
    result is empty if the writes took effect.

    If the retry of a conditional write fails, its writer does not know why: its first attempt may have taken effect, and others
    may have changed the item since. So the transaction also puts a marker, a small item that no other writer changes. The marker
    exists if and only if the transaction took effect.

    Raises:
        StorageUnavailable: the table does not answer; whether the writes took effect is unknown.
    """
    name = random_suffix()
    key = keys.commit_marker(store.tenant, name)
    writes_with_marker = [*writes, Put(key, {TTL: now_s() + _KEEP_SECONDS}, ITEM_ABSENT)]
    for _ in range(_SENDS):
        try:
            await store.table.transact(writes_with_marker, token=name)
        except TransactionFailed as failure:
            # The client retries too. So this may be the failure of a retry whose first attempt took effect.
            took_effect = len(writes) in failure.failures
            return {} if took_effect else failure.failures
        except StorageUnavailable:
            if await store.table.get(key) is not None:
                return {}
        else:
            return {}
    raise storage_timeout()
