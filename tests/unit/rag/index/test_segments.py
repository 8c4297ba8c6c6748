"""The objects of a segment are decoded as they were encoded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spass.rag.index.columns import decode_meta
from spass.rag.index.ids import Bitmap, IdRow, Ids, encode_ids
from spass.rag.index.locations import decode_document
from spass.rag.index.manifest import CODED, Segment
from spass.rag.index.objects import DOCS, IDS, META, OFFSETS, VECTORS, code_blocks
from spass.rag.index.segments import Rows, decode_offsets, decode_vectors, encode_codes, encode_segment, json_line

document_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
metadata = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=3)


@st.composite
def segments(draw: st.DrawFn) -> Rows:
    names = sorted(draw(st.sets(document_ids, min_size=1, max_size=12)))
    bodies = [draw(texts) for _ in names]
    meta = [draw(metadata) for _ in names]
    moments = [draw(st.integers(0, 2**45)) for _ in names]
    return Rows(
        [IdRow(name, at, at + 1, len(text.encode())) for name, at, text in zip(names, moments, bodies, strict=True)],
        [json_line({"id": n, "text": t, "metadata": m}) for n, t, m in zip(names, bodies, meta, strict=True)],
        [json_line(m) for m in meta],
        np.arange(len(names) * 3, dtype=np.float32).reshape(-1, 3),
    )


def is_equal(left: Rows, right: Rows) -> bool:
    return (list(left.ids), list(left.docs), list(left.meta)) == (
        list(right.ids),
        list(right.docs),
        list(right.meta),
    ) and np.array_equal(left.vectors, right.vectors)


@given(segments())
def test_a_decoded_segment_equals_the_encoded_rows(rows: Rows) -> None:
    parts = encode_segment(rows)
    ids = Ids(parts[IDS])
    docs, meta = parts[DOCS].split(b"\n")[:-1], decode_meta(parts[META]).split(b"\n")[:-1]
    assert is_equal(Rows([ids.row(row) for row in range(len(ids))], docs, meta, decode_vectors(parts[VECTORS])), rows)


@given(segments())
def test_offsets_locate_each_line(rows: Rows) -> None:
    parts = encode_segment(rows)
    offsets = decode_offsets(parts[OFFSETS])
    assert offsets[-1] == len(parts[DOCS])
    assert decode_meta(parts[META]).count(b"\n") == len(rows.ids)
    for n, row in enumerate(rows.ids):
        document = decode_document(parts[DOCS][int(offsets[n]) : int(offsets[n + 1])], row)
        assert (document.id, len(document.text.encode())) == (row.id, row.text_bytes)


@given(st.sets(document_ids, max_size=30), document_ids)
def test_ids_find_a_row_and_the_first_row_after_an_id(names: set[str], expected: str) -> None:
    ordered = sorted(names)
    rows = [IdRow(name, n, n + 1, n) for n, name in enumerate(ordered)]
    ids = Ids(encode_ids(rows))
    assert list(ids) == ordered
    assert [ids.row(n) for n in range(len(ids))] == rows
    assert ids.find(expected) == (ordered.index(expected) if expected in names else None)
    assert [ids.find(name) for name in ordered] == list(range(len(ordered)))
    assert list(ids)[ids.first_row_after(expected) :] == [name for name in ordered if name > expected]


@given(st.sets(st.integers(0, 5000)), st.sets(st.integers(0, 5000)))
def test_a_bitmap_is_a_set_of_rows(first: set[int], second: set[int]) -> None:
    bitmap = Bitmap().with_rows(first).with_rows(second)
    assert {row for row in range(5100) if row in bitmap} == first | second
    assert len(bitmap) == len(first | second)
    assert len(Bitmap.unpacked(bitmap.packed())) == len(bitmap)


def test_the_bitmap_of_few_rows_fits_into_the_manifest() -> None:
    from spass.rag.index.manifest import MAX_INLINE_BITMAP_BYTES

    assert len(Bitmap().with_rows([1_000, 70_000]).packed()) < MAX_INLINE_BITMAP_BYTES


def test_stored_codes_are_laid_out_in_blocks_as_the_format_says() -> None:
    segment = Segment("seg", 20_000, 0, 0, format=CODED)
    blocks = [(block.first, block.rows, block.start, block.end) for block in code_blocks(segment, 768)]
    assert blocks == [(0, 10_920, 0, 10_920 * 776), (10_920, 9_080, 10_920 * 776, 20_000 * 776)]
    vectors = np.array([[127, -127, 1, 0], [0, 64, 0, -127]], np.float32) / np.float32(127)
    stored = encode_codes(vectors)
    assert np.frombuffer(stored[:8], "<f4").tolist() == [np.float32(1 / 127)] * 2
    assert np.frombuffer(stored[8:16], "<f4").max() < 1e-6
    assert np.frombuffer(stored[16:], np.int8).tolist() == [127, -127, 1, 0, 0, 64, 0, -127]
