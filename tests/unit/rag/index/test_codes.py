"""The codes of vectors: what they lose is bounded, and their blocks have the format that is stored."""

from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.rag.index.embedding import normalise
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import CODE_BOUND_BYTES, code_block_rows, code_blocks, vector_blocks
from spass.rag.index.segments import Codes, Float32s, decode_codes, encode_block, encode_codes, quantize

_SMALLEST_BITS: Final = 149  # each float32 is a whole multiple of 2^-149
_DIMENSIONS: Final = (1, 2, 3, 7, 8, 31, 32, 33, 127, 384, 768, 1023, 4096)
_KINDS: Final = ("any", "one-hot", "halfway", "one large", "equal", "subnormal", "zeros")


def whole_numbers(floats: Float32s) -> list[int]:
    """Return ``floats``, one after the other, in units of 2^-149."""
    return [int(number) for number in np.ldexp(floats.astype(np.float64).reshape(-1), _SMALLEST_BITS).tolist()]


def check_codes(vectors: Float32s) -> None:
    """Check that codes are the nearest ones, and that a residual is not smaller than what was lost, nor much larger."""
    codes = quantize(vectors)
    assert int(np.abs(codes.codes.astype(np.int16)).max()) <= 127
    scales, residuals = whole_numbers(codes.scales), whole_numbers(codes.residuals)
    for row, row_codes, scale, residual in zip(vectors, codes.codes.tolist(), scales, residuals, strict=True):
        differences = [number - scale * code for number, code in zip(whole_numbers(row), row_codes, strict=True)]
        if scale > 1 << (_SMALLEST_BITS - 100):
            assert 2 * max(map(abs, differences)) <= scale * 1.0001, "a nearer code exists"
        else:
            assert not any(row_codes), "the row is so short that its scale would not be exact"
        lost = sum(difference**2 for difference in differences)
        assert residual**2 >= lost
        surplus = residual - (1 << (_SMALLEST_BITS - 21))
        assert surplus <= 0 or (1000 * surplus) ** 2 <= lost * 1001**2


def check_equal(left: Codes, right: Codes) -> None:
    assert np.array_equal(left.codes, right.codes)
    assert np.array_equal(left.scales, right.scales)
    assert np.array_equal(left.residuals, right.residuals)


@st.composite
def rows_of_length_one(draw: st.DrawFn) -> Float32s:
    """Draw rows as they are stored: of length one, zero, or so short that their length cannot be made one."""
    dimensions, kind = draw(st.sampled_from(_DIMENSIONS) | st.integers(1, 100)), draw(st.sampled_from(_KINDS))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = random.normal(size=(3, dimensions))
    at = random.integers(0, dimensions)
    match kind:
        case "one-hot":
            rows[:] = np.eye(dimensions)[at] * [[1], [-1], [1e30]]
        case "halfway":
            rows = random.integers(-126, 126, rows.shape) + random.choice([0.5, np.nextafter(0.5, 0)], rows.shape)
            rows[:, at] = 127
        case "one large":
            rows *= 10.0 ** -random.integers(1, 40, size=rows.shape)
            rows[:, at] = 1
        case "equal":
            rows[:] = random.choice([-1, 1], dimensions)
        case "subnormal":
            with np.errstate(under="ignore"):
                return (rows * 10.0 ** -random.uniform(25, 46, size=(3, 1))).astype(np.float32)
        case "zeros":
            rows *= random.integers(0, 2, rows.shape)
            rows[0] = 0
    with np.errstate(under="ignore"):
        return normalise(rows.astype(np.float32))


@settings(max_examples=max(60, settings().max_examples // 10))
@given(rows_of_length_one())
def test_a_residual_is_at_least_the_length_that_was_lost_and_little_more(vectors: Float32s) -> None:
    check_codes(vectors)


any_float = st.floats(-1, 1, width=32)


@given(st.integers(1, 12).flatmap(lambda dimensions: st.lists(any_float, min_size=dimensions, max_size=dimensions)))
def test_a_residual_covers_the_loss_of_any_row_of_length_at_most_one(row: list[float]) -> None:
    vectors = np.array([row], np.float32)
    length = float(np.linalg.norm(vectors.astype(np.float64)))
    check_codes(vectors if length <= 1 else normalise(vectors))


def test_a_row_whose_components_are_codes_loses_almost_nothing() -> None:
    codes = quantize(np.array([[1, -1, 0], [0, 0, 0], [127 / 128, 64 / 128, -1 / 128]], np.float32))
    assert codes.codes.tolist() == [[127, -127, 0], [0, 0, 0], [127, 64, -1]]
    assert float(codes.residuals.max()) < 1e-6


@pytest.mark.parametrize("rows", [1, 39, 40, 41, 80, 117])
def test_the_blocks_of_a_segment_decode_to_the_codes_of_its_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dimensions = 24
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", 10 * 4 * dimensions)
    monkeypatch.setattr("spass.rag.index.segments._CHUNK_NUMBERS", 7 * dimensions)
    vectors = normalise(np.random.default_rng(rows).normal(size=(rows, dimensions)).astype(np.float32))
    stored, whole = encode_codes(vectors), quantize(vectors)
    assert len(stored) == rows * (dimensions + CODE_BOUND_BYTES)
    segment = Segment("seg_1", rows, 0, 0)
    blocks = code_blocks(segment, dimensions)
    assert [block.start for block in blocks] == [0, *(block.end for block in blocks[:-1])]
    assert (blocks[-1].end, sum(block.rows for block in blocks)) == (len(stored), rows)
    for block in blocks:
        decoded = decode_codes(stored[block.start : block.end], block.rows, dimensions)
        check_equal(decoded, whole.pick(np.arange(block.first, block.first + block.rows)))


def test_a_block_of_pieces_is_the_same_as_the_block_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So codes that are made from blocks of vectors are equal to those that a writer stores."""
    for dimensions in (1, 33, 384):
        monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", 9 * 4 * dimensions)
        rows = code_block_rows(dimensions)
        vectors = normalise(np.random.default_rng(dimensions).normal(size=(rows, dimensions)).astype(np.float32))
        firsts = [block.first for block in vector_blocks(Segment("seg_1", rows, 0, 0), dimensions)]
        assert len(firsts) == 4
        pieces = [quantize(piece) for piece in np.split(vectors, firsts[1:])]
        assert encode_block(pieces) == encode_codes(vectors)
        assert encode_block([quantize(row[None]) for row in vectors]) == encode_codes(vectors)


def test_picked_rows_keep_their_codes_and_bounds() -> None:
    codes = quantize(normalise(np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)))
    check_equal(codes.pick(np.array([7, 2])), Codes(codes.codes[[7, 2]], codes.scales[[7, 2]], codes.residuals[[7, 2]]))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_block_of_another_size_is_refused(wrong: int) -> None:
    stored = encode_codes(np.eye(4, dtype=np.float32))
    with pytest.raises(ValueError, match="not a block of codes"):
        decode_codes(stored[:wrong] if wrong < 0 else stored + b"x", 4, 4)
    with pytest.raises(ValueError, match="not a block of codes"):
        decode_codes(stored, 4 + wrong, 4)
