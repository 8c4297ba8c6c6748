"""An index of random vectors in the emulated bucket, and queries of it: their times, what they read, and what they cost."""

import statistics
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from bench.meter import Meter, record_calls
from bench.search import Vectors, normal_rows
from infra.costs.prices import ResourceUsage
from infra.routes import ROUTES
from spass.core.ids import IndexId, new_id
from spass.core.time import Deadline, now
from spass.rag.index.cache import ObjectCache
from spass.rag.index.ids import IdRow
from spass.rag.index.manifest import Manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.segments import Rows, json_line
from spass.rag.write.swap import NextVersion, swap
from spass.rag.write.writer import put_segment
from spass.store.tenant_store import TenantStore

DIMENSIONS: Final = 768
TEXT: Final = "Berlin is the capital of Germany and lies on the Spree. " * 10
MEMORY: Final = next(route.memory for route in ROUTES if route.module == "rag.query")
"""The memory of the function for queries, in MiB."""

_SEGMENT_ROWS: Final = 12_500
_MOST_SEGMENTS: Final = 62
_NOISE: Final = 0.75  # of a question, in lengths of the document that it is about: their cosine is 0.8
_MIB_IN_GB: Final = 1024
_QUERIES: Final = 1_000_000


async def write_index(store: TenantStore, index: IndexId, documents: int) -> None:
    """Write an index as it is after merges, without a gateway."""
    objects = SegmentObjects(store, index, new_id("gen"), ObjectCache(0))
    step = max(_SEGMENT_ROWS, -(-documents // _MOST_SEGMENTS))
    segments = []
    for start in range(0, documents, step):
        segments.append(await put_segment(objects, rows(start, min(start + step, documents))))
        print(f"\r{min(start + step, documents)} of {documents} documents are written", end="", file=sys.stderr)
    print(file=sys.stderr)

    async def plan(before: Manifest, _: str) -> NextVersion[None]:
        first = Manifest(objects.generation, embedding_model="bench-embedding", dimensions=DIMENSIONS, created_at=now())
        return NextVersion(None, before.next_version(replace(first, segments=tuple(segments))))

    await swap(store, index, Deadline.after(60), plan)


def rows(start: int, end: int) -> Rows:
    names = [f"d{n:07}" for n in range(start, end)]
    metadata = [{"n": n, "lang": "de" if n % 3 else "en"} for n in range(start, end)]
    return Rows(
        [IdRow(name, 1, 1, len(TEXT)) for name in names],
        [json_line({"id": name, "text": TEXT, "metadata": one}) for name, one in zip(names, metadata, strict=True)],
        [json_line(one) for one in metadata],
        normal_rows(end - start, seed=start),
    )


def random_queries() -> Iterator[Vectors]:
    """Yield vectors that are as near to every document as to any other, the worst case for the bounds."""
    seed = 10_000_000
    while True:
        seed += 1
        yield normal_rows(1, seed)[0]


def queries_like_documents(documents: int) -> Iterator[Vectors]:
    """Yield vectors near one document each, as those of questions are."""
    step = min(documents, max(_SEGMENT_ROWS, -(-documents // _MOST_SEGMENTS)))
    stored = normal_rows(step, seed=0)
    random = np.random.default_rng(4)
    while True:
        near = stored[random.integers(step)] + _NOISE * normal_rows(1, seed=int(random.integers(2**40)))[0]
        yield near / np.linalg.norm(near)


@dataclass(slots=True)
class Timed:
    """A repeated operation, its durations, and what it read from the bucket."""

    name: str
    milliseconds: list[float] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    async def once(self, work: Awaitable[object]) -> None:
        began = time.perf_counter()
        await work
        self.milliseconds.append((time.perf_counter() - began) * 1000)

    async def once_counted(self, work: Awaitable[object]) -> Meter:
        with record_calls() as meter:
            await self.once(work)
        self.reads.append(gets(meter))
        self.sizes.append(meter.bucket_bytes)
        return meter

    def forget(self) -> None:
        for measured in (self.milliseconds, self.reads, self.sizes):
            measured.clear()

    @property
    def p50(self) -> float:
        return statistics.median(self.milliseconds)

    def __str__(self) -> str:
        line = f"  {self.name:42} {self.p50:8.2f} {p99(self.milliseconds):8.2f}"
        if self.reads:
            sizes = [size / 1024 for size in self.sizes]
            line += f" {statistics.median(self.reads):6.0f} {p99(self.reads):6.0f}"
            line += f" {statistics.median(sizes):8.0f} {p99(sizes):8.0f}"
        return line


def p99(measured: Sequence[float]) -> float:
    return statistics.quantiles(measured, n=100)[98]


def gets(meter: Meter) -> int:
    return sum(made.operation == "GetObject" for made in meter.made)


def describe_price(meters: Sequence[Meter], seconds: float) -> str:
    """Describe the price of queries, of which each took ``seconds`` of the function."""
    count = len(meters)
    usage = ResourceUsage(
        read_units=sum(meter.read_units for meter in meters),
        write_units=sum(meter.write_units for meter in meters),
        gb_seconds=count * seconds * MEMORY / _MIB_IN_GB,
        invocations=count,
        api_requests=count,
        bucket_gets=sum(map(gets, meters)),
    )
    dollars = usage.dollars(_QUERIES // count)
    parts = ", ".join(f"{service} {price:.2f}" for service, price in dollars.items() if price)
    return f"  dollars of a million queries: {sum(dollars.values()):.2f} ({parts})"
