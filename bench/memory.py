"""Measure the memory of a warm worker for an index, in addition to the bytes of its vectors.

    python -m bench.memory [--rows 100000] [--dimensions 768]

A process reads a whole index of 64 segments out of a bucket that makes up its objects as they are asked for, answers queries,
with a filter too, and finds a document by its id. What it holds then is what the cache counts; how much the process has grown is
what the system says of it. ``--rows 1000000`` takes 3.5 GB and a few minutes.
"""

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.processes import with_one_thread
from bench.search import normal_rows
from spass.aws.clients import Aws, TenantStore
from spass.aws.objects import TenantObjects
from spass.core.ids import DocumentId, IndexId, TenantId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.columns import encode_meta
from spass.rag.index.filters import parse_filter
from spass.rag.index.ids import IdRow, encode_ids
from spass.rag.index.locations import load_live_ids, locate_documents
from spass.rag.index.manifest import MAX_SEGMENTS, Segment
from spass.rag.index.objects import IDS, META, VECTORS, SegmentObjects
from spass.rag.index.segments import encode_array, json_line
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

TO_REACH: Final = 1.2
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class RandomSegments(TenantObjects):
    """A bucket of random vectors. It caches the last segment, because segments are read in ranges."""

    def __init__(self, rows: int, dimensions: int) -> None:
        super().__init__(_no_client, "", TenantId("bench"))
        self.rows = rows
        self.dimensions = dimensions
        self.vectors: dict[str, bytes] = {}

    async def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        segment, part = key.split("/")[-2:]
        if part == VECTORS:
            return self._vectors(segment)[start:end]
        names = [f"d{segment}-{n:07}" for n in range(self.rows)]
        if part == IDS:
            return encode_ids([IdRow(name, 1, 1, 600) for name in names])
        if part == META:
            lines = (json_line({"n": n, "lang": "de" if n % 3 else "en"}) + b"\n" for n in range(self.rows))
            return encode_meta(b"".join(lines))[start:end]
        raise AssertionError(key)

    def _vectors(self, segment: str) -> bytes:
        if segment not in self.vectors:
            self.vectors.clear()
            rows = np.random.default_rng(int(segment)).standard_normal((self.rows, self.dimensions), dtype=np.float32)
            self.vectors[segment] = encode_array(rows / np.float32(np.sqrt(self.dimensions)))
        return self.vectors[segment]


def _no_client() -> "S3Client":
    raise AssertionError


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def measure(rows: int, dimensions: int) -> None:
    at_once = -(-rows // MAX_SEGMENTS)
    segments = [Segment(str(number), at_once, 0, 2**30) for number in range(MAX_SEGMENTS)]
    vectors = at_once * MAX_SEGMENTS * dimensions * 4
    cache = ObjectCache(budget=2 * vectors + 2**28)
    bucket = RandomSegments(at_once, dimensions)
    real = Aws(table="", bucket="").for_tenant(TenantId("bench"))
    objects = SegmentObjects(
        TenantStore(real.tenant, real.table, bucket, real.uploads, real.jobs), IndexId("bench"), "gen", cache
    )
    query = normal_rows(1, seed=3, dimensions=dimensions)[0]
    before = resident()
    began = time.perf_counter()
    await find_nearest(objects, segments, VectorQuery(query, 10))
    bucket.vectors.clear()
    show("vectors", cache.used_bytes, resident() - before, vectors, rows)
    print(f"  made up and read in {time.perf_counter() - began:.1f} s; ", end="")
    began = time.perf_counter()
    await find_nearest(objects, segments, VectorQuery(query, 10))
    print(f"a warm query takes {(time.perf_counter() - began) * 1000:.1f} ms")
    locate_documents(await load_live_ids(objects, segments), [DocumentId("none")])
    show("and every id", cache.used_bytes, resident() - before, vectors, rows)
    began = time.perf_counter()
    asked = VectorQuery(query, 10, parse_filter({"lang": "de", "n": {"$gte": 100}}))
    await find_nearest(objects, segments, asked)
    show("and two fields of a filter", cache.used_bytes, resident() - before, vectors, rows)
    began = time.perf_counter()
    await find_nearest(objects, segments, asked)
    print(f"  a warm query with that filter takes {(time.perf_counter() - began) * 1000:.1f} ms")


def show(what: str, held: int, grown: int, vectors: int, rows: int) -> None:
    print(
        f"{what:28} held {held / rows:7.1f} bytes a document, {held / vectors:.3f} times the vectors; "
        f"the process has grown by {grown / vectors:.3f} times (to reach: under {TO_REACH})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="documents (default 100000)")
    parser.add_argument("--dimensions", type=int, default=768, help="numbers of a vector (default 768)")
    options = parser.parse_args()
    with_one_thread("bench.memory")
    os.environ.setdefault("AWS_DEFAULT_REGION", "eu-central-1")
    asyncio.run(measure(options.rows, options.dimensions))


if __name__ == "__main__":
    main()
