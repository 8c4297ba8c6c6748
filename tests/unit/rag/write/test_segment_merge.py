"""Rows of several segments, joined, are one segment in the order of ids."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.core.ids import IndexId
from spass.rag.index.bitmap import Bitmap
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import LiveIds
from spass.rag.index.objects import DOCS, IDS, META, OFFSETS, VECTORS, SegmentObjects
from spass.rag.index.segments import Rows, encode_segment
from spass.rag.write.segment_merge import MergeInput, live_rows, put_merged_segment
from tests.unit.rag.conftest import RagHarness
from tests.unit.rag.index.test_segments import segments

PARTS = (IDS, VECTORS, META, DOCS, OFFSETS)


def some_of(rows: Rows, chosen: list[int]) -> Rows:
    return Rows(
        [rows.ids[n] for n in chosen], [rows.docs[n] for n in chosen], [rows.meta[n] for n in chosen], rows.vectors[chosen]
    )


@settings(max_examples=max(20, settings().max_examples // 10))
@given(segments(), st.data())
def test_parts_joined_are_the_whole(aws: Aws, rows: Rows, data: st.DataObject) -> None:
    """Each row stands in one of three segments, where those of the other ones are dead; the third is not in the bucket yet."""
    place = data.draw(st.lists(st.integers(0, 2), min_size=len(rows.ids), max_size=len(rows.ids)))

    async def run() -> None:
        harness = RagHarness(aws)
        objects = SegmentObjects(harness.scope.store, IndexId("i"), "gen_1", ObjectCache())
        alive = [[n for n in range(len(place)) if place[n] == where] for where in range(3)]
        stored = [await put_merged_segment(objects, [MergeInput.of_rows(rows)]) for _ in range(2)]
        sources = [MergeInput.of_rows(some_of(rows, alive[2]))] if alive[2] else []
        for live, chosen in zip(stored, alive, strict=False):
            deleted = Bitmap().with_rows(set(range(len(place))) - set(chosen))
            sources.append(MergeInput.of(objects, LiveIds(live.segment, live.ids, deleted)))
        merged = await put_merged_segment(objects, sources)
        joined, ids = merged.segment, merged.ids
        wanted = encode_segment(rows)
        assert {part: await objects.read(joined.id, part) for part in PARTS} == wanted
        assert (list(ids), joined.rows, joined.text_bytes) == ([row.id for row in rows.ids], len(place), rows.text_bytes)
        assert joined.docs_bytes == len(wanted[DOCS])
        assert [ids.row(n) for n in range(len(ids))] == list(rows.ids)

    asyncio.run(run())


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_rows_are_alive_that_are_not_dead(rows: int, dead: set[int]) -> None:
    dead = {row for row in dead if row < rows}
    assert np.array_equal(live_rows(rows, Bitmap().with_rows(dead)), sorted(set(range(rows)) - dead))
