"""A merge of several segments is one segment in the order of ids."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.core.ids import IndexId, TenantId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.ids import Bitmap, IdRow
from spass.rag.index.locations import LiveIds
from spass.rag.index.manifest import CODED
from spass.rag.index.objects import CODES, DOCS, IDS, META, OFFSETS, VECTORS, SegmentObjects
from spass.rag.index.segments import Rows, encode_segment
from spass.rag.write.segment_merge import MergeInput, live_rows, put_merged_segment
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from tests.unit.rag.conftest import RagHarness
from tests.unit.rag.index.test_segments import segments

T = TypeVar("T")

PARTS = (IDS, VECTORS, META, DOCS, OFFSETS)


def choose_rows(rows: Rows, chosen: list[int]) -> Rows:
    return Rows(
        [rows.ids[n] for n in chosen], [rows.docs[n] for n in chosen], [rows.meta[n] for n in chosen], rows.vectors[chosen]
    )


@settings(max_examples=max(20, settings().max_examples // 10))
@given(segments(), st.data())
def test_merged_parts_of_a_segment_equal_the_whole_segment(aws: Aws, rows: Rows, data: st.DataObject) -> None:
    """Each row is live in one of three segments. The third is not in the bucket yet."""
    segment_numbers = data.draw(st.lists(st.integers(0, 2), min_size=len(rows.ids), max_size=len(rows.ids)))

    async def run() -> None:
        harness = RagHarness(aws)
        objects = SegmentObjects(harness.scope.store, IndexId("i"), "gen_1", ObjectCache())
        live_rows_of = [[n for n in range(len(segment_numbers)) if segment_numbers[n] == where] for where in range(3)]
        stored = [await put_merged_segment(objects, [MergeInput.of_rows(rows)]) for _ in range(2)]
        sources = [MergeInput.of_rows(choose_rows(rows, live_rows_of[2]))] if live_rows_of[2] else []
        for live, chosen in zip(stored, live_rows_of, strict=False):
            deleted = Bitmap().with_rows(set(range(len(segment_numbers))) - set(chosen))
            sources.append(MergeInput.of(objects, LiveIds(live.segment, live.ids, deleted)))
        live = await put_merged_segment(objects, sources)
        merged, ids = live.segment, live.ids
        expected = encode_segment(rows)
        assert {part: await objects.read(merged.id, part) for part in PARTS} == expected
        assert (list(ids), merged.rows, merged.text_bytes) == (
            [row.id for row in rows.ids],
            len(segment_numbers),
            rows.text_bytes,
        )
        assert merged.docs_bytes == len(expected[DOCS])
        assert [ids.row(n) for n in range(len(ids))] == list(rows.ids)

    asyncio.run(run())


@dataclass(slots=True)
class Puts(FaultPlan):
    """Records which parts are put at the same time."""

    running: set[str] = field(default_factory=set)
    together: list[set[str]] = field(default_factory=list)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        part = str(call.parameters["Key"]).rpartition("/")[2]
        self.running.add(part)
        self.together.append(set(self.running))
        for _ in range(5):
            await asyncio.sleep(0)
        self.running.remove(part)
        return await FaultPlan.around(self, call, run)


@pytest.mark.anyio
@pytest.mark.parametrize("is_small", [True, False])
async def test_codes_are_put_while_the_vectors_are_unless_they_need_much_memory(
    monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 40 * 32)
    vectors = np.eye(40, 32, dtype=np.float32)
    monkeypatch.setattr("spass.rag.write.segment_merge._PUT_TOGETHER_BYTES", vectors.nbytes - (not is_small))
    rows = Rows([IdRow(f"d{n:02}", 1, 1, 0) for n in range(40)], [b"{}"] * 40, [b"{}"] * 40, vectors)
    objects = SegmentObjects(MemoryAws().for_tenant(TenantId("demo")), IndexId("i"), "gen_1", ObjectCache())
    puts = Puts()
    with inject(puts):
        merged = (await put_merged_segment(objects, [MergeInput.of_rows(rows)])).segment
    assert any({CODES, VECTORS} <= parts for parts in puts.together) == is_small
    assert merged.format == CODED
    assert {part: await objects.read(merged.id, part) for part in (*PARTS, CODES)} == encode_segment(rows)


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_live_rows_are_all_but_the_deleted_ones(rows: int, deleted: set[int]) -> None:
    deleted = {row for row in deleted if row < rows}
    assert np.array_equal(live_rows(rows, Bitmap().with_rows(deleted)), sorted(set(range(rows)) - deleted))
