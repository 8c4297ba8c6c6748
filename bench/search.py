"""Measure one exact query inside the process against numpy, faiss and usearch: p50 over vectors in memory, one thread each.

    python -m bench.search [--sizes 1000 10000 100000 1000000] [--seconds S]

All targets take turns on the same queries. ``ours`` is what a query of the gateway runs over the segments that merges leave, with
codes and vectors in memory in the blocks of the cache; its answers are rounded and in their order, while the peers give bare
float32. The floor is the
time in which numpy reads the same bytes. Recall is measured against float64, ties and all. A million rows take 10 GB of memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.processes import with_one_thread
from spass.rag.index.cache import in_large_pages
from spass.rag.index.manifest import CODED, MAX_SEGMENTS, Segment, has_codes
from spass.rag.index.objects import Block, code_blocks, vector_block_rows, vector_blocks
from spass.rag.index.segments import decode_codes, decode_rows, encode_array, encode_codes
from spass.rag.search.code_scan import CodeBlock, CodedQuery, int8_dot, scan_codes
from spass.rag.search.scan import MIN_SCORE, ScanBlock, ScoredRow, keep_top_k, scan_top_k
from spass.rag.write.merge_policy import MERGE_ROWS

Vectors = npt.NDArray[np.float32]
Answer = Callable[[Vectors], Sequence[int]]

DIMENSIONS: Final = 768
TOP_K: Final = 10
_CACHEABLE_ROWS: Final = 100_000
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(slots=True)
class Target:
    """A search for the best rows for a query."""

    name: str
    answer: Answer
    seconds: list[float] = field(default_factory=list)
    right: int = 0
    asked: int = 0

    def once(self, query: Vectors) -> None:
        began = time.perf_counter()
        self.answer(query)
        self.seconds.append(time.perf_counter() - began)

    def check(self, query: Vectors, exact: npt.NDArray[np.float64]) -> None:
        """Count which answers are among the best, or tie with the last of them to six decimals."""
        tenth = np.partition(exact, len(exact) - TOP_K)[len(exact) - TOP_K]
        self.right += sum(exact[row] >= tenth for row in self.answer(query)[:TOP_K])
        self.asked += TOP_K


def peer(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise SystemExit("This bench compares with two other libraries: pip install faiss-cpu usearch") from None


def normal_rows(count: int, seed: int, dimensions: int = DIMENSIONS) -> Vectors:
    """Return random vectors: (count, dimensions) float32, rows normalised."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, dimensions), dtype=np.float32)
    for start in range(0, count, 65_536):
        block = rows[start : start + 65_536]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return rows


class ResidentIndex:
    """The codes and the vectors of an index in memory, in the blocks in which the cache has them."""

    def __init__(self, vectors: Vectors) -> None:
        parts = np.array_split(vectors, min(MAX_SEGMENTS, max(3, len(vectors) // MERGE_ROWS)))
        self._firsts = np.cumsum([0, *map(len, parts)])
        self._has_codes = has_codes(len(parts[-1]), DIMENSIONS)
        self._codes: list[CodeBlock] = []
        self._vectors: list[list[ScanBlock]] = []
        self.candidates: list[int] = []
        for number, rows in enumerate(parts):
            segment = Segment(str(number), len(rows), 0, 0, format=CODED)
            for block, body in _bodies(encode_codes(rows), code_blocks(segment, DIMENSIONS)):
                self._codes.append(CodeBlock(number, block.first, decode_codes(in_large_pages(body), block.rows, DIMENSIONS)))
            bodies = _bodies(encode_array(rows), vector_blocks(segment, DIMENSIONS))
            self._vectors.append(
                [ScanBlock(number, block.first, decode_rows(body, block.rows, header=not block.first)) for block, body in bodies]
            )

    def search(self, query: Vectors) -> list[int]:
        """Do what a query does whose index is in memory."""
        if not self._has_codes:
            best = scan_top_k([block for blocks in self._vectors for block in blocks], query, TOP_K)
            return self._numbers(best)
        found = scan_codes(self._codes, CodedQuery(query), TOP_K)
        self.candidates.append(len(found.rows))
        best = []
        for part in found.best_first(TOP_K):
            floor = best[TOP_K - 1].score if best else MIN_SCORE
            blocks = []
            for number, block_number, within in part.pick(part.upper >= floor).by_block(vector_block_rows(DIMENSIONS)):
                block = self._vectors[number][block_number]
                blocks.append(replace(block, included=within.rows - block.first))
            best = keep_top_k(best + scan_top_k(blocks, query, TOP_K, floor), TOP_K)
        return self._numbers(best)

    def _numbers(self, best: Sequence[ScoredRow]) -> list[int]:
        return [int(self._firsts[scored.segment]) + scored.row for scored in best]


def _bodies(stored: bytes, blocks: Sequence[Block]) -> Iterator[tuple[Block, bytes]]:
    for block in blocks:
        yield block, stored[block.start : block.end]


def with_numpy(vectors: Vectors) -> Answer:
    def answer(query: Vectors) -> list[int]:
        scores = vectors @ query
        found = np.argpartition(scores, len(scores) - TOP_K)[len(scores) - TOP_K :]
        order: list[int] = found[np.argsort(-scores[found])].tolist()
        return order

    return answer


def with_faiss(vectors: Vectors) -> Answer:
    faiss = peer("faiss")
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(DIMENSIONS)
    index.add(vectors)

    def answer(query: Vectors) -> list[int]:
        found: list[int] = index.search(query[None], TOP_K)[1][0].tolist()
        return found

    return answer


def with_usearch(vectors: Vectors) -> Answer:
    usearch = peer("usearch.index")

    def answer(query: Vectors) -> list[int]:
        matches = usearch.search(vectors, query, TOP_K, usearch.MetricKind.IP, exact=True, threads=1)
        found: list[int] = matches.keys.tolist()
        return found

    return answer


def memory_bandwidth(vectors: Vectors) -> Answer:
    """Read every byte in two streams, the fastest way with numpy."""
    flat = vectors.reshape(-1)
    half = len(flat) // 2

    def read(_: Vectors) -> list[int]:
        np.dot(flat[:half], flat[half : 2 * half])
        return []

    return read


def exact_scores(vectors: Vectors, query: Vectors) -> npt.NDArray[np.float64]:
    scores = np.empty(len(vectors))
    for start in range(0, len(vectors), 8192):
        scores[start : start + 8192] = vectors[start : start + 8192].astype(np.float64) @ query.astype(np.float64)
    return np.round(scores, 6)


def measure(vectors: Vectors, seconds: float) -> list[Target]:
    index = ResidentIndex(vectors)
    makers = {"numpy": with_numpy, "faiss flat": with_faiss, "usearch exact": with_usearch, "floor": memory_bandwidth}
    # Each has vectors of its own while these might stay in the processor's cache, so that none finds there what another read.
    own = len(vectors) <= _CACHEABLE_ROWS
    peers = [Target(name, make(vectors.copy() if own else vectors)) for name, make in makers.items()]
    targets = [Target("ours", index.search), *peers]
    queries = normal_rows(64, seed=2)
    for target in targets:
        target.answer(queries[0])
    until = time.monotonic() + seconds
    rounds = 0
    while rounds < 7 or time.monotonic() < until:
        # Each is the first in its turn, so that none always finds what its neighbour left in the processor's cache.
        for target in targets[rounds % len(targets) :] + targets[: rounds % len(targets)]:
            target.once(queries[rounds % len(queries)])
        rounds += 1
    for query in queries[:5]:
        exact = exact_scores(vectors, query)
        for target in targets[:-1]:
            target.check(query, exact)
    if not index.candidates:
        return targets
    spread = np.percentile(index.candidates, [50, 99, 100]).astype(int).tolist()
    print(f"{len(vectors):9} candidates of a query: median {spread[0]}, 99th percentile {spread[1]}, most {spread[2]}")
    return targets


def report(rows: int, targets: Sequence[Target]) -> None:
    medians = {target.name: statistics.median(target.seconds) for target in targets}
    fastest = min(medians[target.name] for target in targets[1:-1])
    for target in targets:
        p50 = medians[target.name]
        recall = f"{target.right / target.asked:9.3f}" if target.asked else f"{'':9}"
        ratio = "" if target.name == "floor" else f"{p50 / fastest:8.2f}"
        speed = rows * DIMENSIONS * 4 / p50 / 1e9
        print(f"{rows:9} {target.name:14} {p50 * 1000:9.3f} {min(target.seconds) * 1000:9.3f} {speed:7.1f} {recall} {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows (default 1000 10000 100000 1000000)")
    parser.add_argument("--seconds", type=float, default=10, help="for each size (default 10)")
    options = parser.parse_args()
    with_one_thread("bench.search")
    int8_dot(np.zeros((1, DIMENSIONS), np.int8), np.zeros(DIMENSIONS, np.int8))  # simsimd fails if it is loaded after usearch
    peer("faiss")
    peer("usearch.index")
    vectors = normal_rows(max(options.sizes), seed=1)
    print(f"{'rows':>9} {'':14} {'p50 ms':>9} {'best ms':>9} {'GB/s':>7} {'recall@10':>9} {'of the fastest peer':>19}")
    for rows in options.sizes:
        report(rows, measure(vectors[:rows], options.seconds))


if __name__ == "__main__":
    main()
