"""Measure the memory of a warm worker for an index: of codes and vectors where both stay in memory, and of codes alone.

    python -m bench.memory [--rows 100000] [--dimensions 768]

For each, a process of its own reads an index of 64 segments out of a bucket that makes up its objects as they are asked for. The
cache has the smallest budget for what is to stay. The process answers different queries until all of that is in memory, then one
with a filter, and finds a document by its id. What it holds then is what the cache counts; how much the process has grown is what
the system says of it. ``--rows 1000000`` takes 5 GB and a few minutes.
"""

import argparse
import asyncio
import ctypes
import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from bench.processes import silence_logs, with_one_thread
from bench.search import Vectors, normal_rows
from spass.aws.bucket import S3Access, S3Objects
from spass.aws.clients import Aws
from spass.core.ids import DocumentId, IndexId, TenantId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.columns import encode_meta
from spass.rag.index.filters import Filter, parse_filter
from spass.rag.index.ids import IdRow, encode_ids
from spass.rag.index.locations import load_live_ids, locate_documents
from spass.rag.index.manifest import CODED, MAX_SEGMENTS, Segment, has_codes
from spass.rag.index.objects import (
    CODE_BOUND_BYTES,
    CODES,
    HEADER_BYTES,
    IDS,
    META,
    VECTORS,
    Block,
    SegmentObjects,
    code_blocks,
    vector_blocks,
)
from spass.rag.index.segments import encode_array, encode_codes, json_line
from spass.rag.search.blocks import Residency, choose_residency
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.store.tenant_store import TenantStore

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
MAX_QUERIES: Final = 2_000  # until everything is in memory
_MADE_ROWS: Final = 64  # made up together
OTHERS: Final = 5  # queries after that
TOP_K: Final = 10
MOST: Final = {Residency.CODES: 1.1, Residency.CODES_AND_VECTORS: 1.3}
"""The most memory that is wanted, in bytes of the codes alone or of the vectors."""


class RandomSegments(S3Objects):
    """A bucket of segments of ``rows`` random vectors, each of which has the length 1. It makes up what is read."""

    def __init__(self, rows: int, dimensions: int) -> None:
        super().__init__(S3Access(_no_client, _no_client), "", TenantId("bench"))
        self.rows = rows
        self.dimensions = dimensions
        self.reads = 0
        self.read_bytes = 0
        self.last: tuple[str, bytes] = ("", b"")
        """The key and the body of the last object, because objects are read in ranges."""

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        segment, part = key.split("/")[-2:]
        body = self._vectors(segment, start or 0, end) if part == VECTORS else self._object(segment, part)[start:end]
        self.reads += 1
        self.read_bytes += len(body)
        return body

    def forget(self) -> None:
        self.last = ("", b"")

    def _vectors(self, segment: str, start: int, end: int | None) -> bytes:
        width = self.dimensions * 4
        first = max(0, start - HEADER_BYTES) // width // _MADE_ROWS
        last = self.rows if end is None else -(-(end - HEADER_BYTES) // width)
        made = self._rows(segment, first, -(-last // _MADE_ROWS))
        stored = made.reshape(-1).data.cast("B")
        if start < HEADER_BYTES:
            header = encode_array(np.empty((0, self.dimensions), np.float32))
            return b"".join((header[start:], stored[: None if end is None else end - HEADER_BYTES]))
        begin = start - HEADER_BYTES - first * _MADE_ROWS * width
        return bytes(stored[begin : None if end is None else begin + end - start])

    def _rows(self, segment: str, first: int, end: int) -> Vectors:
        """Return the rows of pieces of ``_MADE_ROWS`` rows."""
        rows = np.empty(((end - first) * _MADE_ROWS, self.dimensions), np.float32)
        for number in range(first, end):
            piece = rows[(number - first) * _MADE_ROWS :][:_MADE_ROWS]
            np.random.default_rng((int(segment) << 20) + number).standard_normal(dtype=np.float32, out=piece)
            piece /= np.sqrt(np.vecdot(piece, piece))[:, None]
        return rows[: self.rows - first * _MADE_ROWS]

    def _object(self, segment: str, part: str) -> bytes:
        key = f"{segment}/{part}"
        if self.last[0] != key:
            self.forget()
            self.last = (key, self._make(segment, part))
        return self.last[1]

    def _make(self, segment: str, part: str) -> bytes:
        names = [f"d{segment}-{n:07}" for n in range(self.rows)]
        if part == IDS:
            return encode_ids([IdRow(name, 1, 1, 600) for name in names])
        if part == META:
            lines = (json_line({"n": n, "lang": "de" if n % 3 else "en"}) + b"\n" for n in range(self.rows))
            return encode_meta(b"".join(lines))
        assert part == CODES, part
        return encode_codes(self._rows(segment, 0, -(-self.rows // _MADE_ROWS)))


def _no_client() -> NoReturn:
    raise AssertionError


def resident() -> int:
    """Return the resident memory of this process, in bytes, without freed memory that glibc keeps: there lay what was made up."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@dataclass
class Worker:
    """A process that answers queries of an index with ``rows`` documents, and what it held before the first one."""

    rows: int
    dimensions: int
    residency: Residency
    segments: list[Segment] = field(init=False)
    asked: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        at_once = -(-self.rows // MAX_SEGMENTS)
        if not has_codes(at_once, self.dimensions):
            raise SystemExit(f"A segment of {at_once} rows of {self.dimensions} numbers has no codes.")
        self.rows = at_once * MAX_SEGMENTS
        self.segments = [Segment(str(number), at_once, 0, 2**30, format=CODED) for number in range(MAX_SEGMENTS)]
        self.bucket = RandomSegments(at_once, self.dimensions)
        self.cache = ObjectCache(self._smallest_budget())
        self.objects = SegmentObjects(self._store(self.bucket), IndexId("bench"), "gen", self.cache)
        self.before = resident()

    async def warm_up(self) -> None:
        """Answer a query of a small index, so that what each process needs once is not counted as memory for the index."""
        bucket = RandomSegments(256, self.dimensions)
        objects = SegmentObjects(self._store(bucket), IndexId("small"), "gen", ObjectCache(2**20))
        vector = normal_rows(1, seed=9_999, dimensions=self.dimensions)[0]
        await find_nearest(objects, [Segment("0", 256, 0, 2**30, format=CODED)], VectorQuery(vector, TOP_K))
        bucket.forget()
        grown = resident() - self.before
        print(
            f"  the first query of a small index: the process has grown by {grown / 2**20:.1f} MiB; the next lines are without it"
        )
        self.before += grown

    @staticmethod
    def _store(bucket: RandomSegments) -> TenantStore:
        real = Aws(table="", bucket="").for_tenant(TenantId("bench"))
        return TenantStore(real.tenant, real.table, bucket, real.uploads, real.jobs, real.line)

    def _smallest_budget(self) -> int:
        """Return the smallest number of bytes with which this residency is chosen, found by bisection."""
        low, high = 0, 2 * self.rows * (self.dimensions + CODE_BOUND_BYTES) * 8
        order = [Residency.SOME_CODES, Residency.CODES, Residency.CODES_AND_VECTORS]
        while low < high:
            middle = (low + high) // 2
            chosen = choose_residency(self.segments, self.dimensions, middle)
            low, high = (low, middle) if order.index(chosen) >= order.index(self.residency) else (middle + 1, high)
        return low

    @property
    def code_bytes(self) -> int:
        return self.rows * (self.dimensions + CODE_BOUND_BYTES)

    @property
    def base(self) -> int:
        """The bytes that the memory is compared with."""
        return self.rows * self.dimensions * 4 if self.residency.keeps_vectors else self.code_bytes

    def wanted_blocks(self) -> list[Block]:
        """The blocks that are to stay in memory."""
        lists = [code_blocks, vector_blocks] if self.residency.keeps_vectors else [code_blocks]
        return [block for blocks in lists for segment in self.segments for block in blocks(segment, self.dimensions)]

    def missing(self) -> int:
        return sum(not self.objects.is_cached(block) for block in self.wanted_blocks())

    async def ask(self, filter_: Filter | None = None) -> float:
        """Answer a query of its own, and return how many milliseconds that took."""
        self.asked += 1
        vector = normal_rows(1, seed=10_000 + self.asked, dimensions=self.dimensions)[0]
        began = time.perf_counter()
        with silence_logs():
            await find_nearest(self.objects, self.segments, VectorQuery(vector, TOP_K, filter_))
        return (time.perf_counter() - began) * 1000

    async def fill(self) -> None:
        """Ask until all that is to stay is in memory."""
        began = time.perf_counter()
        await self.ask()
        self.show(f"after the first query, which read {self.bucket.read_bytes / self.base:.2f} times that")
        while (missing := self.missing()) and self.asked < MAX_QUERIES:
            await self.ask()
        self.bucket.forget()
        took = time.perf_counter() - began
        what = f"{missing} blocks are still missing" if missing else "all of it is in memory"
        print(f"  after {self.asked} queries {what} (made up and read in {took:.0f} s)")

    def show(self, what: str) -> None:
        self.bucket.forget()
        held, grown = self.cache.used_bytes, resident() - self.before
        print(
            f"  {what:58} held {held / self.rows:7.1f} bytes a document, {held / self.base:.3f} times; "
            f"the process has grown by {grown / self.base:.3f} times",
            flush=True,
        )

    async def measure(self) -> None:
        of = "vectors" if self.residency.keeps_vectors else "codes"
        print(
            f"{self.residency}: {self.rows} documents of {self.dimensions} numbers, {self.base / 2**20:.0f} MiB of {of} "
            f"(wanted: at most {MOST[self.residency]} times that), a budget of {self.cache.budget / 2**20:.0f} MiB"
        )
        await self.warm_up()
        await self.fill()
        self.show("codes and vectors" if self.residency.keeps_vectors else "codes")
        reads, size = self.bucket.reads, self.bucket.read_bytes
        took = sorted([await self.ask() for _ in range(OTHERS)])
        reads, size = self.bucket.reads - reads, self.bucket.read_bytes - size
        of_them = "the time of a read is not real" if reads else f"{took[OTHERS // 2]:.1f} ms"
        print(f"  another query reads {reads / OTHERS:.1f} ranges, {size / OTHERS / 1024:.0f} KiB in all; {of_them}")
        locate_documents(await load_live_ids(self.objects, self.segments), [DocumentId("none")])
        self.show("and every id")
        await self.ask(parse_filter({"lang": "de", "n": {"$gte": 100}}))
        self.show("and two fields of a filter")


def measure(rows: int, dimensions: int, residency: Residency) -> None:
    os.environ.setdefault("AWS_DEFAULT_REGION", "eu-central-1")
    asyncio.run(Worker(rows, dimensions, residency).measure())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="documents (default 100000)")
    parser.add_argument("--dimensions", type=int, default=768, help="numbers of a vector (default 768)")
    options = parser.parse_args()
    with_one_thread("bench.memory")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for residency in MOST:
            processes.submit(measure, options.rows, options.dimensions, residency).result()


if __name__ == "__main__":
    main()
