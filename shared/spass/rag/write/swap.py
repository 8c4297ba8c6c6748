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
from spass.aws.commit_marker import commit
from spass.aws.idempotency import Claim, StoredAnswer
from spass.aws.keys import rag_manifest
from spass.aws.leases import LeaseLost
from spass.aws.objects import ObjectMissing
from spass.aws.table import Write
from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import IndexId, random_suffix
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline
from spass.rag.index.answers import WriteAnswer
from spass.rag.index.manifest import Manifest, decode_manifest, swap_write, unchanged_check
from spass.rag.index.precondition import IfMatch
from spass.rag.write.merge_policy import merge_due

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

_MAX_STALE_READS: Final = 2  # a plan that meets a missing object is made anew once
_MAX_BACKOFF_SECONDS: Final = 0.25  # seconds between two plans, full jitter


@dataclass(frozen=True, slots=True)
class NextVersion(Generic[A_co]):
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
    return decode_manifest(await store.table.get(rag_manifest(store.tenant, index)))


async def swap(
    store: TenantStore,
    index: IndexId,
    deadline: Deadline,
    plan: Callable[[Manifest, str], Awaitable[NextVersion[A]]],
    beside: Beside[A] | None = None,
    if_match: IfMatch | None = None,
) -> A:
    """Carry out ``plan``: given the version in force and a new name for this try, it puts what objects it needs and answers a
    step. The version and the writes ``beside`` it take effect together. When another writer swapped first, the plan is made anew
    on what is now in force; what it had put before is left to the sweep.

    The precondition ``if_match`` is checked on the very version that the swap replaces, at each try.

    A step that changes nothing writes only what goes with it, on condition that the version is still in force. When a write
    leaves a merge due, a job is asked for.

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
            if stale_reads >= _MAX_STALE_READS:
                raise StorageUnavailable("The index is changing; try again.", retry_after=1) from None
            continue
        stale_reads = 0
        if step.after is None and beside is None:
            return step.answer
        swapped = (
            swap_write(store.tenant, index, before, step.after) if step.after else unchanged_check(store.tenant, index, before)
        )
        writes: list[Write] = [swapped]
        if beside is not None:
            writes += await beside.writes(step.answer)
        failures = await commit(store, writes)
        if not failures:
            if step.after is not None and step.after.version > before.version and merge_due(step.after):
                await _request_merge(store, index)
            return step.answer
        if beside is not None and failures.keys() - {0}:
            raise beside.refused()
        if not deadline.remaining():
            raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)
        await asyncio.sleep(random.uniform(0, _MAX_BACKOFF_SECONDS))  # noqa: S311 (jitter)


async def _request_merge(store: TenantStore, index: IndexId) -> None:
    with suppress(SpassError):  # the write is done; the next one asks again, and so does the sweep
        await store.jobs.send(MergeSegments(store.tenant, index))
