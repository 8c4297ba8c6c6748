"""Choose what of an index a process keeps in memory between queries."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from spass.rag.index.manifest import Segment, has_codes
from spass.rag.index.objects import CODE_BOUND_BYTES

_ID_BYTES: Final = 64  # of a row in ``ids``, about
_FLOAT_BYTES: Final = 4


class Residency(StrEnum):
    """What stays in memory: codes and vectors, codes alone, or those codes that fit."""

    CODES_AND_VECTORS = "codes and vectors"
    CODES = "codes"
    SOME_CODES = "some codes"

    @property
    def keeps_vectors(self) -> bool:
        return self is Residency.CODES_AND_VECTORS


def choose_residency(segments: Sequence[Segment], dimensions: int, budget: int) -> Residency:
    """Return what fits ``budget``, the bytes of the cache. Segments without codes count with their vectors in each case."""
    coded = sum(segment.rows for segment in segments if has_codes(segment.rows, dimensions))
    rows = sum(segment.rows for segment in segments)
    vectors = dimensions * _FLOAT_BYTES
    least = coded * (dimensions + CODE_BOUND_BYTES) + (rows - coded) * vectors + rows * _ID_BYTES
    if least + coded * vectors <= budget:
        return Residency.CODES_AND_VECTORS
    return Residency.CODES if least <= budget else Residency.SOME_CODES
