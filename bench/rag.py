"""Measure queries and appends of an index over HTTP, with an embedding server that answers immediately.

    python -m bench.rag [--documents 10000 100000] [--queries N]

For each size, in the memory of the function for queries: what the first search reads, and how long it takes; then p50 and p99 of
``POST …/query``, beside the same query as a call in a process that is as warm, and beside its parts, all taking turns. Of
searches, what they read from the bucket: for random vectors, which are the worst case, and for vectors like those of documents.
At last, what a million queries cost. Table and bucket are emulated on this machine, over HTTP. ``--documents 1000000`` takes 8 GB
of memory and a few minutes.
"""

import argparse
import asyncio
import http.client
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from bench.processes import TOKEN, USER, emulated_aws, server, silence_logs, with_one_thread, write_config
from bench.rag_index import (
    DIMENSIONS,
    MEMORY,
    TEXT,
    Timed,
    describe_price,
    queries_like_documents,
    random_queries,
    write_index,
)
from bench.search import Vectors
from spass.calls.scope import Scope
from spass.core.ids import IndexId, TenantId
from spass.core.time import Deadline
from spass.rag.index.manifest import read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.search.blocks import choose_residency
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.web.services import Services

TO_REACH_MS: Final = 3.0
SEARCH_TO_REACH_MS: Final = 300
ENVIRONMENT: Final = {"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(MEMORY)}
HEADERS: Final = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
TOP_K: Final = 5
WARM_UP: Final = 40  # queries, after which an index that fits is in memory
PRICED: Final = 20
BATCHES: Final = 20
BATCH: Final = 256


class Http:
    """A client of the gateway with one open connection."""

    def __init__(self, base: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(base).netloc)

    def post(self, path: str, body: object) -> None:
        try:
            reply = self._send(path, body)
        except ConnectionError:  # the server closes a connection that was idle for seconds
            self.connection.close()
            reply = self._send(path, body)
        answer = reply.read()
        if reply.status != 200:
            raise SystemExit(f"{path} answered {reply.status}: {answer[:300]!r}")

    def _send(self, path: str, body: object) -> http.client.HTTPResponse:
        self.connection.request("POST", path, json.dumps(body), HEADERS)
        return self.connection.getresponse()


class Queries:
    """Queries of one index, over HTTP and in this process, whose cache is that of the function for queries."""

    def __init__(self, gateway: Http, documents: int) -> None:
        self.gateway = gateway
        self.documents = documents
        self.index = IndexId(f"docs-{documents}")
        self.services = Services()
        self.store = self.services.aws.for_tenant(TenantId("bench"))
        self.scope = Scope.for_job(self.store, Deadline.after(3600), route="bench")
        self.kinds = {
            "of it: the search, for a random vector": random_queries(),
            "the same, for one like a document's": queries_like_documents(documents),
        }
        self.lines: list[str] = []

    async def measure(self, queries: int) -> None:
        await write_index(self.store, self.index, self.documents)
        self.manifest = await read_manifest(self.store, self.index)
        self.objects = SegmentObjects(self.store, self.index, self.manifest.generation, self.services.object_cache)
        await self.first_search()
        await self.take_turns(queries)
        await self.price()

    async def search(self, vector: Vectors) -> None:
        await find_nearest(self.objects, self.manifest.segments, VectorQuery(vector, TOP_K))

    async def ask(self, query: str) -> None:
        await self.services.reader.query(self.scope, self.index, query, TOP_K)

    async def first_search(self) -> None:
        budget = self.objects.cache.budget
        residency = choose_residency(self.manifest.segments, DIMENSIONS, budget)
        self.lines.append(
            f"{self.documents} documents of {DIMENSIONS} numbers; in the cache of {budget / 2**20:.0f} MiB stay: {residency}"
        )
        first = Timed("the first search, cold")
        await first.once_counted(self.search(next(random_queries())))
        times = first.sizes[0] / (self.documents * DIMENSIONS * 4)
        self.lines.append(
            f"  {first.name}: {first.p50:.0f} ms, {first.reads[0]} reads of {first.sizes[0] / 2**20:.1f} MiB in all, {times:.2f} "
            "times the bytes of the vectors"
        )

    async def take_turns(self, queries: int) -> None:
        by_http, in_process = Timed("POST …/query"), Timed("the same query as a call in this process")
        table, *searches = map(Timed, ("of it: the manifest read", *self.kinds))
        path = f"/a1/rag/indices/{self.index}/query"
        for number in range(queries + WARM_UP):
            if number == WARM_UP:
                for timed in (by_http, in_process, table, *searches):
                    timed.forget()
            query = f"Question {number}?"
            await by_http.once(asyncio.to_thread(self.gateway.post, path, {"query": query, "top_k": TOP_K}))
            await in_process.once_counted(self.ask(query))
            await table.once(read_manifest(self.store, self.index))
            for search, vectors in zip(searches, self.kinds.values(), strict=True):
                await search.once_counted(self.search(next(vectors)))
        slowest = max(search.p50 for search in searches)
        self.by_http = by_http
        self.lines += [
            f"  {'warm':42} {'p50 ms':>8} {'p99 ms':>8} {'reads':>6} {'p99':>6} {'KiB':>8} {'p99':>8}",
            *map(str, (by_http, in_process, table, *searches)),
            f"  HTTP adds {by_http.p50 - in_process.p50:.2f} ms at the median (to reach: under {TO_REACH_MS:.0f})",
            f"  a search takes {slowest:.0f} ms at the median (to reach, of 1,000,000: under {SEARCH_TO_REACH_MS})",
        ]

    async def price(self) -> None:
        again = Timed("again")
        for query in ("What was asked before?", "What was asked before?"):
            again.forget()
            await again.once_counted(self.ask(query))
        self.lines.append(f"  a query that is asked again reads {again.reads[0]} objects of the bucket")
        meters = [await again.once_counted(self.ask(f"Priced {number}?")) for number in range(PRICED)]
        self.lines.append(describe_price(meters, self.by_http.p50 / 1000))


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
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream, "bench-embedding") | ENVIRONMENT
        os.environ |= environment
        gateway = Http(stack.enter_context(server("bench.gateway:app", environment)))
        ingest(gateway)
        for documents in options.documents:
            measured = Queries(gateway, documents)
            with silence_logs():
                asyncio.run(measured.measure(options.queries))
            print(*measured.lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
