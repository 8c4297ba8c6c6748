"""Count the rows that a scan of 8-bit codes leaves for a score in full precision, for real text and for random vectors.

    python -m bench.candidates [--rows 24000] [--queries 200]

Real text is sentences of the documentation and of docstrings, embedded with the built-in model (384 numbers); the queries are
sentences that are not in the index. There may be fewer than ``--rows``. As many random vectors have 768 numbers. A query asks for
the best ten, and its bounds are those of the query rounded to 8 bits, and then those of the query itself. Each count is checked:
the candidates must contain every row that scores as well as the tenth in float64. Embedding takes some minutes.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from bench.corpus import docstring_sentences, document_sentences, embed
from bench.processes import with_one_thread
from bench.search import TOP_K, exact_scores, normal_rows
from spass.rag.index.segments import Vectors, quantize
from spass.rag.search.code_scan import Candidates, CodeBlock, CodedQuery, bound_again, scan_codes

_BATCH: Final = 1000  # sentences that are embedded between two reports of progress


@dataclass(slots=True)
class CandidateCounts:
    """The number of candidates of each query. Of the ``best`` rows of all queries, ``found`` were among the candidates."""

    counts: list[int] = field(default_factory=list)
    found: int = 0
    best: int = 0

    def add(self, candidates: Candidates, best: Sequence[int]) -> None:
        self.counts.append(len(candidates.rows))
        self.found += len({*best} & {*candidates.rows.tolist()})
        self.best += len(best)

    @property
    def recall(self) -> float:
        return self.found / self.best


class BoundCounts(NamedTuple):
    """The candidates by the bounds of the query rounded to 8 bits, and by those of the query itself."""

    rounded: CandidateCounts
    exact: CandidateCounts


def count_candidates(rows: Vectors, queries: Vectors) -> BoundCounts:
    """Count the candidates for the ten best of ``rows`` for each of ``queries``: (n, d) float32, rows normalised."""
    blocks = [CodeBlock(0, 0, quantize(rows))]
    counted = BoundCounts(CandidateCounts(), CandidateCounts())
    for vector in queries:
        query = CodedQuery(vector)
        scores = exact_scores(rows, vector)
        best = np.flatnonzero(scores >= np.partition(scores, -TOP_K)[-TOP_K]).tolist()
        candidates = scan_codes(blocks, query, TOP_K)
        counted.rounded.add(candidates, best)
        closer = bound_again(blocks, query, candidates)
        counted.exact.add(closer.pick(closer.upper >= np.partition(closer.lower, -TOP_K)[-TOP_K]), best)
    return counted


def embed_with_progress(texts: Sequence[str]) -> Vectors:
    """Return (n, 384) float32, and print to standard error how many of ``texts`` are embedded."""
    parts = []
    for start in range(0, len(texts), _BATCH):
        parts.append(embed(texts[start : start + _BATCH]))
        done = min(start + _BATCH, len(texts))
        print(f"\r{done} of {len(texts)} sentences are embedded", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24_000, help="rows of each index, at most (default 24000)")
    parser.add_argument("--queries", type=int, default=200, help="queries of each index (default 200)")
    options = parser.parse_args()
    with_one_thread("bench.candidates")
    sentences = list(dict.fromkeys([*document_sentences(), *docstring_sentences()]))
    random.Random(1).shuffle(sentences)
    text = embed_with_progress(sentences[: options.rows + options.queries])
    print(f"{'':10} {'rows':>7} {'numbers':>7} {'query':>8} {'median':>8} {'99th':>8} {'most':>8} {'recall':>8}")
    for name, vectors in {"real text": text, "random": normal_rows(len(text), seed=1)}.items():
        queries, rows = np.split(vectors, [options.queries])
        for rounding, counted in count_candidates(rows, queries)._asdict().items():
            middle, ninety_nine = np.percentile(counted.counts, [50, 99], method="higher")
            shape = f"{name:10} {len(rows):7} {rows.shape[1]:7} {rounding:>8}"
            print(f"{shape} {middle:8} {ninety_nine:8} {max(counted.counts):8} {counted.recall:8.3f}")


if __name__ == "__main__":
    main()
