"""A manifest is decoded as it was encoded, and stays small."""

import os
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InternalError
from spass.core.ids import IndexId, TenantId, new_id, random_suffix
from spass.core.time import now
from spass.rag.index.manifest import (
    CODED,
    MAX_INLINE_BITMAP_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_SEGMENTS,
    VECTORS_ALONE,
    GarbageEntry,
    Manifest,
    Segment,
    decode_manifest,
    swap_write,
)
from spass.rag.write.merge_policy import HEADROOM, MERGE_ROWS, choose_merge
from spass.store.writes import Item

TENANT, INDEX = TenantId("demo"), IndexId("berlin")


def segment(rows: int, deleted_rows: int = 0, *, size: int = 100) -> Segment:
    return Segment(new_id("seg"), rows, rows * size, rows * size, deleted_rows)


def encode(before: Manifest, after: Manifest) -> Item:
    return cast(Item, dict(swap_write(TENANT, INDEX, before, after).set))


segments = st.builds(
    Segment,
    id=st.builds(new_id, st.just("seg")),
    rows=st.integers(1, 10**6),
    text_bytes=st.integers(0, 10**10),
    docs_bytes=st.integers(0, 10**10),
    deleted_rows=st.integers(0, 10),
    inline_bitmap=st.binary(max_size=MAX_INLINE_BITMAP_BYTES),
    bitmap_object=st.sampled_from(["", "deleted_rows-x"]),
    format=st.sampled_from([VECTORS_ALONE, CODED]),
)


@given(st.lists(segments, max_size=MAX_SEGMENTS))
def test_a_decoded_manifest_equals_the_encoded_one(listed: list[Segment]) -> None:
    first = Manifest("gen_1", 0, "model", 8, now(), now(), tuple(listed))
    after = Manifest(garbage=(GarbageEntry("gen_0/seg_1", 7),)).next_version(first)
    assert decode_manifest(encode(Manifest(), after)) == after
    assert after.version == 1


def test_the_largest_manifest_fits() -> None:
    manifest = Manifest()
    for _ in range(100):
        largest_segments = tuple(
            Segment(new_id("seg"), 10**7, 10**11, 10**11, 10**6, os.urandom(MAX_INLINE_BITMAP_BYTES), format=CODED)
            for _ in range(MAX_SEGMENTS)
        )
        gen = new_id("gen")
        next_ = Manifest(gen, 0, "m" * 100, 16384, now(), now(), largest_segments)
        garbage = (GarbageEntry(f"{gen}/{new_id('seg')}/deleted_rows-{random_suffix()}", 2**32) for _ in range(3))
        manifest = replace(manifest, garbage=(*manifest.garbage, *garbage)).next_version(next_)
    item = encode(Manifest(), manifest)
    assert 20_000 < sum(len(str(value)) for value in item.values()) < MAX_MANIFEST_BYTES


def test_a_manifest_with_too_many_segments_is_refused() -> None:
    after = Manifest("gen_1", 1, "m", 8, now(), now(), tuple(segment(1) for _ in range(MAX_SEGMENTS + 1)))
    with pytest.raises(InternalError):
        encode(Manifest(), after)


@pytest.mark.parametrize(("batch", "appends"), [(1, 3000), (256, 4000), (7, 2000)])
def test_appends_keep_the_number_of_segments_small(batch: int, appends: int) -> None:
    segments: list[Segment] = []
    rewritten = 0
    for _ in range(appends):
        merged = choose_merge(segments, batch, 384)
        rows = batch + sum(one.live_rows for one in merged)
        rewritten += rows - batch
        segments = [one for one in segments if one not in merged] + [segment(rows)]
        assert len(segments) <= MAX_SEGMENTS - HEADROOM
    assert sum(one.live_rows for one in segments) == batch * appends
    if batch * appends <= MERGE_ROWS * 10:
        assert len(segments) <= 30
        assert rewritten <= batch * appends * 13, "each row is rewritten once for each doubling"


def test_an_append_merges_a_segment_with_mostly_deleted_rows() -> None:
    nearly_empty = segment(4000, 3990)
    assert choose_merge([nearly_empty, segment(4000)], 10, 384) == [nearly_empty]


def test_an_append_does_not_merge_large_segments() -> None:
    assert choose_merge([segment(5000), segment(200, size=200_000)], 256, 384) == []
    assert choose_merge([segment(256)], 256, 384) != []
    assert choose_merge([segment(4000)], 4000, 384) == []


def test_an_append_does_not_merge_segments_with_many_bytes_of_vectors() -> None:
    assert choose_merge([segment(600)], 600, 16_384) == []
