"""Compare-and-swap: plan a change of the current version and write it. If another writer was faster, plan it again."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from spass.core.errors import SpassError, StorageUnavailable
from spass.core.tasks import back_off
from spass.core.time import Deadline
from spass.store.commit_marker import commit
from spass.store.tenant_store import TenantStore
from spass.store.writes import Check, Put, Update, Write

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

_MAX_BACKOFF_SECONDS: Final = 0.25  # seconds between two attempts, full jitter


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
        ...

    def refusal(self) -> SpassError:
        """Return the error to raise when a condition of these writes fails. The transaction then had no effect."""
        ...


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
