"""Run concurrent writers, merges and sweeps with faults. No document is lost, duplicated or restored.

Each writer has its own documents in the one index. After a failed call it reads them to learn whether the write took effect.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from spass.core.errors import DocumentNotFound, IndexNotFound, SpassError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.time import Deadline, now_s
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch
from spass.rag.index.manifest import read_manifest
from spass.rag.write.merge_job import merge
from spass.rag.write.sweep import GARBAGE_SECONDS, sweep
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.integration.rag.conftest import RagHarness, documents
from tests.sampling import SOAK

pytestmark = pytest.mark.anyio

INDEX = IndexId("busy")
WRITERS = 4
STEPS = 150 if SOAK else 15
ROUNDS = 10 if SOAK else 1


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job merges four segments of a tier, an append merges up to four rows, and all bitmaps are objects."""
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 4)
    monkeypatch.setattr("spass.rag.write.merge_policy._MANY_SEGMENTS", 3)
    monkeypatch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)
    monkeypatch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)


@dataclass
class Writer:
    """A writer with the ``texts`` of its documents and the number of its ``versions``."""

    harness: RagHarness
    name: str
    random: random.Random
    rag: Rag = field(init=False)
    texts: dict[str, str] = field(default_factory=dict)
    versions: int = 0

    def __post_init__(self) -> None:
        self.rag = self.harness.worker()

    async def step(self, number: int) -> None:
        names = [f"{self.name}-{n}" for n in range(6)]
        chosen = self.random.sample(names, self.random.randint(1, 3))
        text = f"{self.name} {number}"
        after = dict(self.texts)
        work: Coroutine[Any, Any, object]
        match self.random.choice(["append", "append", "delete", "patch"]):
            case "append":
                work = self.rag.writer.append(self.harness.scope(), INDEX, documents(*((name, text) for name in chosen)))
                after |= dict.fromkeys(chosen, text)
            case "delete":
                work = self.rag.deleter.delete_document(self.harness.scope(), INDEX, DocumentId(chosen[0]))
                after.pop(chosen[0], None)
            case _:
                work = self.rag.writer.patch(self.harness.scope(), INDEX, DocumentId(chosen[0]), DocumentPatch(text=text))
                after |= {chosen[0]: text} if chosen[0] in after else {}
        fault = self.random.choice([None, None, *Fault])
        plan = FaultPlan(fault, at=self.random.randrange(12))
        try:
            with inject(plan):
                await work
        except (IndexNotFound, DocumentNotFound):
            assert after == self.texts
        except (Crash, StorageUnavailable):
            if plan.crashed:
                self.rag = self.harness.worker()
            stored = await self.read_texts()
            assert stored in (self.texts, after), f"{self.name} {number}: {fault} at {plan.at}"
            after = stored
        self.versions += after != self.texts
        self.texts = after

    async def read_texts(self) -> dict[str, str]:
        rag = self.harness.worker()
        while True:
            try:
                page = (await rag.reader.documents(self.harness.scope(), INDEX, None, 1000)).documents
            except StorageUnavailable:  # a sweep deleted the objects, as it does not wait for an hour in this test
                continue
            except IndexNotFound:
                return {}
            return {str(one.id): one.text for one in page if one.id.startswith(f"{self.name}-")}


async def merge_and_sweep(harness: RagHarness, chance: random.Random, done: asyncio.Event) -> tuple[int, int]:
    """Merge, and sweep as if an hour had passed, until ``done`` is set. Return the numbers of merges and deleted objects."""
    merges = deletions = 0
    while not done.is_set():
        fault = chance.choice([None, *Fault])
        with inject(FaultPlan(fault, at=chance.randrange(40))):
            try:
                merges += await merge(harness.store, ObjectCache(), INDEX, Deadline.after(3600))
                deletions += (await sweep(harness.store, now_s() + GARBAGE_SECONDS, Deadline.after(60))).garbage
            except (Crash, SpassError):
                continue
    return merges, deletions


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(ROUNDS)] if SOAK else [3])
async def test_concurrent_writes_merges_and_sweeps_lose_and_duplicate_no_document(
    harness: RagHarness, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_job.LEASE_SECONDS", 0)  # every lease expires immediately
    chance = random.Random(seed)
    writers = [Writer(harness, f"w{n}", random.Random(chance.random())) for n in range(WRITERS)]
    done = asyncio.Event()

    async def write(writer: Writer) -> None:
        for number in range(STEPS):
            await writer.step(number)

    async def all_writers() -> None:
        try:
            await asyncio.gather(*map(write, writers))
        finally:
            done.set()

    _, *counts_by_worker = await asyncio.gather(
        all_writers(), *(merge_and_sweep(harness, random.Random(chance.random()), done) for _ in range(2))
    )
    assert await harness.texts(INDEX) == {name: text for writer in writers for name, text in writer.texts.items()}, f"seed {seed}"
    assert (await read_manifest(harness.store, INDEX)).version == sum(writer.versions for writer in writers), f"seed {seed}"
    merges, deletions = (sum(counts) for counts in zip(*counts_by_worker, strict=True))
    assert merges > 0
    assert deletions > 0


async def test_a_recreated_index_has_no_document_of_its_earlier_generation(harness: RagHarness) -> None:
    """Delete and recreate the index four times during appends and merges."""
    done = asyncio.Event()

    async def append_to_old(writer: int) -> list[tuple[int, str]]:
        rag, log, number = harness.worker(), [], 0
        while not done.is_set():
            name = f"w{writer}-{number}"
            log.append(((await rag.writer.append(harness.scope(), INDEX, documents((name, "x")))).version, name))
            number += 1
        return log

    async def recreate() -> list[tuple[int, str]]:
        rag, log = harness.worker(), []
        for number in range(4):
            await asyncio.sleep(0.3)
            await rag.deleter.delete_index(harness.scope(), INDEX)
            answer = await rag.writer.replace(harness.scope(), INDEX, documents((f"r{number}", "neu")))
            log.append((answer.version, f"r{number}"))
        done.set()
        return log

    await harness.worker().writer.append(harness.scope(), INDEX, documents(("first", "x")))
    recreations, *logs, _ = await asyncio.gather(
        recreate(), append_to_old(0), append_to_old(1), merge_and_sweep(harness, random.Random(1), done)
    )
    expected = {
        name for version, name in [*recreations, *(entry for log in logs for entry in log)] if version >= recreations[-1][0]
    }
    assert set(await harness.texts(INDEX)) == expected
