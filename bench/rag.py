"""Measure queries and appends of an index over HTTP, with an embedding server that answers immediately.

    python -m bench.rag [--documents 10000 100000] [--queries N]

For each size: p50 and p99 of ``POST …/query``, beside the same query as a call in a process that is as warm, and beside its
parts, all taking turns; what a warm and a cold query read from the bucket, and how long the cold one takes. Table and bucket are
emulated on this machine, over HTTP.
"""

import argparse
import asyncio
import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import numpy as np

from bench.processes import TOKEN, USER, emulated_aws, server, with_one_thread, write_config
from bench.search import normal_rows
from spass.aws.clients import TenantStore
from spass.aws.invocation import AwsCall
from spass.calls.scope import Scope
from spass.core.ids import IndexId, TenantId, new_id
from spass.core.time import Deadline, now
from spass.rag.index.cache import ObjectCache
from spass.rag.index.ids import IdRow
from spass.rag.index.manifest import Manifest, read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.segments import Rows, json_line
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.rag.search.reader import Reader
from spass.rag.write.swap import NextVersion, swap
from spass.rag.write.upsert import put_segment
from spass.testing.faults import FaultPlan, inject
from spass.web.services import Services

T = TypeVar("T")

TO_REACH_MS: Final = 3.0
MEMORY: Final = {"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "2048"}  # an index of 100,000 fits
HEADERS: Final = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
SEGMENT_ROWS: Final = 12_500
TEXT: Final = "Berlin is the capital of Germany and lies on the Spree. " * 10
BATCHES: Final = 20
BATCH: Final = 256


@dataclass(slots=True)
class Reads(FaultPlan):
    """Counts the reads of the bucket."""

    objects: int = 0
    size: int = 0

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        result = await FaultPlan.around(self, call, run)
        if call.operation == "GetObject" and isinstance(result, bytes):
            self.objects += 1
            self.size += len(result)
        return result


class Http:
    """A client of the gateway with one open connection."""

    def __init__(self, base: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(base).netloc)

    def post(self, path: str, body: object) -> None:
        self.connection.request("POST", path, json.dumps(body), HEADERS)
        reply = self.connection.getresponse()
        answer = reply.read()
        if reply.status != 200:
            raise SystemExit(f"{path} answered {reply.status}: {answer[:300]!r}")


@dataclass(slots=True)
class Timed:
    """A repeated operation and its durations."""

    name: str
    milliseconds: list[float] = field(default_factory=list)

    async def once(self, work: Awaitable[object]) -> None:
        began = time.perf_counter()
        await work
        self.milliseconds.append((time.perf_counter() - began) * 1000)

    @property
    def p50(self) -> float:
        return statistics.median(self.milliseconds)

    def __str__(self) -> str:
        return f"  {self.name:42} {self.p50:8.2f} {statistics.quantiles(self.milliseconds, n=100)[98]:8.2f}"


async def write_index(store: TenantStore, index: IndexId, documents: int) -> None:
    """Write an index as it is after merges, without a gateway."""
    objects = SegmentObjects(store, index, new_id("gen"), ObjectCache(0))
    starts = range(0, documents, SEGMENT_ROWS)
    segments = [await put_segment(objects, rows(start, min(start + SEGMENT_ROWS, documents))) for start in starts]

    async def plan(before: Manifest, _: str) -> NextVersion[None]:
        first = Manifest(objects.generation, embedding_model="bench-embedding", dimensions=768, created_at=now())
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


async def measure(gateway: Http, documents: int, queries: int) -> None:
    services = Services()
    store = services.aws.for_tenant(TenantId("bench"))
    index = IndexId(f"docs-{documents}")
    await write_index(store, index, documents)
    manifest = await read_manifest(store, index)
    scope = Scope.for_job(store, Deadline.after(3600), route="bench")
    vector = normal_rows(1, seed=99)[0]
    objects = SegmentObjects(store, index, manifest.generation, services.object_cache)
    by_http, in_process = Timed("POST …/query"), Timed("the same query as a call in this process")
    table, search = Timed("of it: the manifest read"), Timed("of it: the search")
    path = f"/a1/rag/indices/{index}/query"
    gateway.connection.close()  # the server has, after so long; the next request opens another
    for number in range(queries + 10):
        if number == 10:  # warm
            for timed in (by_http, in_process, table, search):
                timed.milliseconds.clear()
        query = f"Question {number}?"
        await by_http.once(asyncio.to_thread(gateway.post, path, {"query": query, "top_k": 5}))
        await in_process.once(services.reader.query(scope, index, query, 5))
        await table.once(read_manifest(store, index))
        await search.once(find_nearest(objects, manifest.segments, VectorQuery(vector, 5)))
    print(f"{documents} documents of 768 numbers{'':23} {'p50 ms':>8} {'p99 ms':>8}")
    print(by_http, in_process, table, search, sep="\n")
    print(f"  HTTP adds {by_http.p50 - in_process.p50:.2f} ms at the median (to reach: under {TO_REACH_MS:.0f})")
    await show_reads("warm", services.reader, scope, index, "Question 17?")
    await show_reads("warm, another text", services.reader, scope, index, "What was not asked before?")
    await show_reads("cold", Reader(services.embedder, ObjectCache()), scope, index, "Question 17?")


async def show_reads(name: str, reader: Reader, scope: Scope, index: IndexId, query: str) -> None:
    reads = Reads()
    began = time.perf_counter()
    with inject(reads):
        await reader.query(scope, index, query, 5)
    took = time.perf_counter() - began
    print(f"  {name}: {took * 1000:.0f} ms, {reads.objects} reads from the bucket of {reads.size / 2**20:.2f} MiB in all")


def ingest(gateway: Http) -> None:
    numbers = np.arange(BATCHES * BATCH).reshape(BATCHES, BATCH)
    bodies: Sequence[object] = [
        {"documents": [{"id": f"d{n}", "text": f"{n} {TEXT}", "metadata": {"n": int(n)}} for n in batch]} for batch in numbers
    ]
    began = time.perf_counter()
    for body in bodies:
        gateway.post("/a1/rag/indices/ingest/documents/append", body)
    took = time.perf_counter() - began
    print(f"appends of {BATCH} documents: {BATCHES * BATCH / took:.0f} documents a second, one request after the other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000], help="sizes (default 10000 100000)")
    parser.add_argument("--queries", type=int, default=150, help="for each size (default 150)")
    options = parser.parse_args()
    with_one_thread("bench.rag")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(server("bench.upstream:upstream", {}))
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream, "bench-embedding") | MEMORY
        os.environ |= environment
        gateway = Http(stack.enter_context(server("bench.gateway:app", environment)))
        ingest(gateway)
        for documents in options.documents:
            asyncio.run(measure(gateway, documents, options.queries))


if __name__ == "__main__":
    main()
