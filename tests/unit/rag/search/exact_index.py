"""An index in memory whose rows are known, and brute force over them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy import vecdot  # the reference keeps it when a test plants an error in numpy

from spass.core.ids import IndexId, TenantId
from spass.core.messages import Json
from spass.rag.index.cache import ObjectCache
from spass.rag.index.filters import parse_filter
from spass.rag.index.ids import Bitmap, IdRow
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.segments import Rows, Vectors, json_line
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.rag.write.segment_merge import MergeInput, put_merged_segment
from spass.rag.write.writer import put_segment
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Members = npt.NDArray[np.intp]

_ROWS_OF_PART: Final = 65_536
_SCALE: Final = 1e6  # scores are rounded to six decimals


@dataclass(frozen=True, slots=True)
class Question:
    """A query of a test, for documents whose field ``n`` meets ``condition``; ``matching`` are those rows, (n,) booleans. Rows
    ``deleted``, (n,) booleans, are deleted before it."""

    vector: Vectors
    top_k: int
    deleted: Mask
    matching: Mask
    condition: Mapping[str, Json] | None = None
    min_score: float | None = None


Found = tuple[str, float]
"""The id and the score of a document."""


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """An index with the (n, d) float32 ``vectors``. Row i has the id ``document_id(i)`` and the metadata ``{"n": numbers[i]}``.
    It is in the segment whose ``members`` list it."""

    store: TenantStore
    vectors: Vectors
    numbers: Sequence[int]
    segments: Sequence[Segment]
    members: Sequence[Members]

    def objects(self, cache: ObjectCache) -> SegmentObjects:
        return _objects(self.store, cache)

    def scores(self, query: Vectors) -> Scores:
        """Return the scores of all rows: dot products in float64, rounded to six decimals.

        Products of float32 numbers are exact in float64. Sums are not, so a score next to a rounding border may depend on the
        order of additions. ``np.vecdot`` defines it: for every row the same order, wherever the row is."""
        query64 = query.astype(np.float64)
        parts = np.array_split(self.vectors, len(self.vectors) // _ROWS_OF_PART + 1)  # a million rows are too many in float64
        exact = np.concatenate([vecdot(part.astype(np.float64), query64) for part in parts])
        rounded: Scores = np.rint(np.clip(exact, -1, 1) * _SCALE) / _SCALE + 0.0  # -0.0 + 0.0 is 0.0
        return rounded

    def brute_force(self, question: Question) -> list[Found]:
        """Return what a search must return. Rows are in the order of ids, so a stable sort resolves ties by id."""
        scores = self.scores(question.vector)
        allowed = ~question.deleted & question.matching
        if question.min_score is not None:
            allowed &= scores >= question.min_score
        rows = np.flatnonzero(allowed)
        best = rows[np.argsort(-scores[rows], kind="stable")][: question.top_k]
        return [(document_id(row), score) for row, score in zip(best.tolist(), scores[best].tolist(), strict=True)]

    async def search(self, objects: SegmentObjects, question: Question) -> list[Found]:
        """Search with the code under test."""
        filter_ = None if question.condition is None else parse_filter({"n": dict(question.condition)})
        query = VectorQuery(question.vector, question.top_k, filter_, question.min_score)
        segments = [
            _with_deleted_rows(segment, question.deleted[members])
            for segment, members in zip(self.segments, self.members, strict=True)
        ]
        neighbors = await find_nearest(objects, segments, query)
        for neighbor in neighbors:
            (number,) = (number for number, segment in enumerate(segments) if segment == neighbor.segment)
            assert document_id(self.members[number][neighbor.row]) == neighbor.id
        return [(neighbor.id, neighbor.score) for neighbor in neighbors]


async def put_index(
    vectors: Vectors, numbers: Sequence[int], members: Sequence[Members], merged: Collection[int] = ()
) -> KnownIndex:
    """Put a segment for each of ``members``, which are ascending row numbers, into a bucket of its own. Those with the numbers
    ``merged`` are written by a merge."""
    store = MemoryAws().for_tenant(TenantId("exact"))
    objects = _objects(store, ObjectCache(0))
    segments = []
    for number, listed in enumerate(members):
        parts = [listed[::2], listed[1::2]] if number in merged and len(listed) > 1 else [listed]
        segments.append(await _put_segment(objects, [_rows(vectors, numbers, part) for part in parts]))
    return KnownIndex(store, vectors, numbers, segments, members)


def _rows(vectors: Vectors, numbers: Sequence[int], listed: Members) -> Rows:
    return Rows(
        ids=[IdRow(document_id(row), 0, 0, 0) for row in listed.tolist()],
        docs=[b"{}"] * len(listed),
        meta=[json_line({"n": numbers[row]}) for row in listed.tolist()],
        vectors=vectors[listed],
    )


async def _put_segment(objects: SegmentObjects, parts: Sequence[Rows]) -> Segment:
    if len(parts) == 1:
        return await put_segment(objects, parts[0])
    return (await put_merged_segment(objects, list(map(MergeInput.of_rows, parts)))).segment


def document_id(row: int) -> str:
    """Return the id of the document of ``row``. Ids are in the order of rows."""
    return f"d{row:06}"


def _objects(store: TenantStore, cache: ObjectCache) -> SegmentObjects:
    return SegmentObjects(store, IndexId("exact"), "generation", cache)


def _with_deleted_rows(segment: Segment, deleted: Mask) -> Segment:
    rows = np.flatnonzero(deleted).tolist()
    return replace(segment, deleted_rows=len(rows), inline_bitmap=Bitmap().with_rows(rows).packed()) if rows else segment
