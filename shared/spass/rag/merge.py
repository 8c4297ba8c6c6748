"""Which segments an append takes into its own, so that their number stays small: a binary counter, as in log-structured stores.

A row is rewritten only into a segment at least twice as large, so once per doubling
(https://en.wikipedia.org/wiki/Log-structured_merge-tree).
"""

from collections.abc import Sequence
from typing import Final

from spass.rag.manifest import MAX_SEGMENTS, Segment

MERGE_ROWS: Final = 4096
MERGE_BYTES: Final = 32 * 2**20  # of texts and vectors read
HEADROOM: Final = 8  # places left free by a merge, for writers that have no time for one
_FLOAT_BYTES: Final = 4


def choose_merge(segments: Sequence[Segment], new_rows: int, dimensions: int) -> list[Segment]:
    """Those of ``segments`` to rewrite together with ``new_rows`` rows: small ones as long as each is no larger than what is
    collected so far and the result stays within what one request can do; more, smallest first, if there would be too many
    otherwise."""
    smallest_first = sorted(segments, key=lambda segment: (segment.live_rows, segment.id))
    chosen: list[Segment] = []
    left: list[Segment] = []
    rows, size = new_rows, 0
    for segment in smallest_first:
        stored = segment.docs_bytes + segment.rows * dimensions * _FLOAT_BYTES
        fits = rows + segment.live_rows <= MERGE_ROWS and size + stored <= MERGE_BYTES
        if segment.live_rows <= rows and fits:
            chosen.append(segment)
            rows += segment.live_rows
            size += stored
        else:
            left.append(segment)
    too_many = max(0, len(left) + 1 - (MAX_SEGMENTS - HEADROOM))
    return chosen + left[:too_many]
