"""Making the next version of an index: plan it on the version in force, swap it in, and start over when another writer was
faster."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from spass.aws.beside import Beside
from spass.aws.clients import TenantStore
from spass.aws.idempotency import Claim, StoredAnswer
from spass.aws.keys import rag_manifest
from spass.aws.leases import LeaseLost
from spass.aws.objects import ObjectMissing
from spass.aws.table import TransactionFailed, Write
from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import IndexId, random_suffix
from spass.core.time import Deadline
from spass.rag.answers import WriteAnswer
from spass.rag.manifest import Manifest, manifest_of, swap_write
from spass.rag.merge import merge_due
from spass.rag.precondition import IfMatch

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

_SENDS: Final = 3  # of one swap, while nobody can say whether it took place
_STALE_READS: Final = 2  # a plan that meets a missing object is made anew once
_LONGEST_PAUSE: Final = 0.25  # seconds between two plans, full jitter


@dataclass(frozen=True, slots=True)
class Step(Generic[A_co]):
    """What a plan comes to: ``answer``, and the version ``after`` that makes it true; None when nothing has to change."""

    answer: A_co
    after: Manifest | None


@dataclass(frozen=True, slots=True)
class Completion:
    """How an Idempotency-Key's answer is kept with the write: for whose ``claim``, and what headers belong to the answer by
    then."""

    claim: Claim
    headers: Callable[[], Mapping[str, str]] = dict

    async def writes(self, answer: WriteAnswer, /) -> Sequence[Write]:
        """The write that keeps the answer's body."""
        return [await self.claim.completion(StoredAnswer(answer.body(), self.headers()))]

    def refused(self) -> SpassError:
        return LeaseLost("Another try of this request has taken over; try again.", retry_after=1)


async def read_manifest(store: TenantStore, index: IndexId) -> Manifest:
    """The version in force."""
    return manifest_of(await store.table.get(rag_manifest(store.tenant, index)))


async def swap(
    store: TenantStore,
    index: IndexId,
    deadline: Deadline,
    plan: Callable[[Manifest, str], Awaitable[Step[A]]],
    beside: Beside[A] | None = None,
    if_match: IfMatch | None = None,
) -> A:
    """Carry out ``plan``: given the version in force and a new name for this swap, it puts what objects it needs and answers a
    step. The version and the writes ``beside`` it take effect together. When another writer swapped first, the plan is made anew
    on what is now in force; what it had put before is left to the sweep.

    The precondition ``if_match`` is checked on the very version that the swap replaces, at each try.

    A step that changes nothing is still swapped in when something goes with it, so that its name settles a lost reply. When a
    write leaves a merge due, a job is asked for.

    Raises:
        StorageUnavailable: the table or bucket does not answer, or the deadline passed among too many other writers.
        IndexChanged: ``if_match`` does not hold; nothing was changed.
        SpassError: what ``beside`` says when one of its conditions does not hold.
    """
    stale_reads = 0
    while True:
        before = await read_manifest(store, index)
        name = random_suffix()
        try:
            if if_match is not None:
                await if_match.check(store, index, before)
            step = await plan(before, name)
        except ObjectMissing:
            stale_reads += 1
            if stale_reads >= _STALE_READS:
                raise StorageUnavailable("The index is changing; try again.", retry_after=1) from None
            continue
        stale_reads = 0
        if step.after is None and beside is None:
            return step.answer
        after = step.after or before.rearranged_as(before, swap=name)
        writes: list[Write] = [swap_write(store.tenant, index, before, after)]
        if beside is not None:
            writes += await beside.writes(step.answer)
        if await _took_place(store, index, name, writes, beside):
            if after.version > before.version and merge_due(after):
                await _ask_for_merge(store, index)
            return step.answer
        if not deadline.remaining():
            raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)
        await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 (jitter)


async def _ask_for_merge(store: TenantStore, index: IndexId) -> None:
    with suppress(SpassError):  # the write is done; the next one asks again, and so does the sweep
        await store.jobs.merge(index)


async def _took_place(store: TenantStore, index: IndexId, name: str, writes: Sequence[Write], beside: Beside[A] | None) -> bool:
    """Send the swap until it is known whether it took place. A lost reply is settled by reading whose swap it was; if not ours,
    the same transaction is sent again under the same token, and fails if another came between. The client sends again too, so a
    failed condition may be the first sending's effect: our name among the swaps says so."""
    for _ in range(_SENDS):
        try:
            await store.table.transact(writes, token=name)
        except TransactionFailed as failure:
            others = failure.failures.keys() - {0}
            if 0 in failure.failures:
                found = manifest_of(failure.failures[0])
            else:
                found = await read_manifest(store, index)
            if name in found.swaps:
                return True
            if others and beside is not None:
                raise beside.refused() from None
            return False
        except StorageUnavailable:
            if name in (await read_manifest(store, index)).swaps:
                return True
        else:
            return True
    raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1)
