"""The swap: plan the next version of an index and make it the current one, or plan again if another writer was faster."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from spass.core.errors import SpassError
from spass.core.ids import IndexId, random_suffix
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline
from spass.rag.index.manifest import Manifest, read_current, swap_write, unchanged_check
from spass.rag.index.precondition import IfMatch
from spass.rag.write.merge_policy import needs_merge_job
from spass.store.swap import Participant, Swap
from spass.store.swap import swap as compare_and_swap
from spass.store.tenant_store import TenantStore

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class NextVersion(Generic[A_co]):
    """The result of a plan: ``answer``, and the version ``after`` that makes it true. It is None if nothing changes."""

    answer: A_co
    after: Manifest | None


async def swap(
    store: TenantStore,
    index: IndexId,
    deadline: Deadline,
    plan: Callable[[Manifest, str], Awaitable[NextVersion[A]]],
    participant: Participant[A] | None = None,
    if_match: IfMatch | None = None,
) -> A:
    """Make the version that ``plan`` returns the current one, and return its answer.

    ``plan`` gets the current version and a new name for this attempt, and puts the objects that it needs. The next version and
    the participant's writes take effect together. If another writer swaps first, plan again on the new current version; the sweep
    deletes the objects of the lost attempt. ``if_match`` is checked in each attempt, on the version that the swap replaces.

    If the plan changes nothing, only the participant's writes are made, on condition that the version is still the current one.
    If a merge is due after a write, request a merge job.

    Raises:
        StorageUnavailable: the table or bucket does not answer, or the deadline passed among too many other writers.
        IndexChanged: ``if_match`` does not hold; nothing was changed.
        SpassError: the participant's refusal.
    """
    merge = False

    async def plan_swap(before: Manifest) -> Swap[A]:
        nonlocal merge
        if if_match is not None:
            await if_match.check(store, index, before)
        next_ = await plan(before, random_suffix())
        if next_.after is None:
            return Swap(next_.answer, unchanged_check(store.tenant, index, before))
        merge = next_.after.version > before.version and needs_merge_job(next_.after)
        return Swap(next_.answer, swap_write(store.tenant, index, before, next_.after))

    answer = await compare_and_swap(store, lambda: read_current(store, index, plan_swap), deadline, participant)
    if merge:
        with suppress(SpassError):  # the write is done; the next write or the sweep requests the job again
            await store.jobs.send(MergeSegments(store.tenant, index))
    return answer
