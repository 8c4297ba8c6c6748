"""A filter selects the same documents by columns as by their metadata."""

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidRequest
from spass.core.messages import Json
from spass.rag.index.columns import Column, decode_directory, decode_meta, directory_bytes, encode_meta, encode_missing_column
from spass.rag.index.filters import NULL, metadata_key, parse_filter

FIELDS = ["year", "tag", "ü", "a.b"]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -0.0, 2.0**53, 2**53 + 1, -(2**70), 1e300, 0.1])
    | st.sampled_from(["", "a", "b", "ab", "1", "true", "ü", "\U0001f600", "z\n"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("kl"), inner, max_size=2), max_leaves=3
)
documents = st.lists(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4), min_size=1, max_size=30)
plain = values.filter(lambda value: not isinstance(value, dict) or bool(value))
operators = st.dictionaries(st.sampled_from(["$gte", "$lte", "$ne"]), values, max_size=3)
filter_values = plain | st.tuples(operators, st.none() | st.lists(values, max_size=3)).map(
    lambda pair: pair[0] | ({} if pair[1] is None else {"$in": pair[1]}) or {"$ne": None}
)
filters = st.dictionaries(st.sampled_from([*FIELDS, "absent"]), filter_values, max_size=3)


def columns_match(metadata: list[dict[str, Json]], raw: Mapping[str, Json]) -> list[bool]:
    """Return for each document whether its columns match the filter ``raw``."""
    stored = encode_meta(b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in metadata))
    directory = decode_directory(stored[: directory_bytes(stored)])
    matches = [True] * len(metadata)
    for field, condition in parse_filter(raw).fields.items():
        if field in directory.columns:
            column = stored[slice(*directory.columns[field])]
        elif directory.complete:
            matches = [before and condition.matches(NULL) for before in matches]
            continue
        else:
            column = encode_missing_column(stored[slice(*directory.lines)], field)
        mask = Column(column).mask(condition, len(metadata)).tolist()
        matches = [before and now for before, now in zip(matches, mask, strict=True)]
    return matches


@given(documents, filters, st.sampled_from([0, 1, 256]), st.sampled_from([1, 2**16]))
def test_columns_match_the_same_documents_as_the_filter(
    metadata: list[dict[str, Json]], raw: dict[str, Json], max_columns: int, max_counted: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.index.columns.MAX_COLUMNS", max_columns)
        patch.setattr("spass.rag.index.columns._MAX_COUNTED_FIELDS", max_counted)
        assert columns_match(metadata, raw) == [parse_filter(raw).matches(one) for one in metadata]


def matches_value(value: Any, entry: Any) -> bool:
    """Return whether a value matches one entry of a filter, by the documented rules."""

    def same(left: Any, right: Any) -> bool:
        if isinstance(left, bool) or isinstance(right, bool):
            return left is right
        if isinstance(left, list) and isinstance(right, list):
            return len(left) == len(right) and all(map(same, left, right))
        if isinstance(left, dict) and isinstance(right, dict):
            return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
        return bool(left == right)

    def comparable(left: Any, right: Any) -> bool:
        if isinstance(left, bool) or isinstance(right, bool):
            return False
        return all(isinstance(one, str) for one in (left, right)) or all(isinstance(one, int | float) for one in (left, right))

    if not isinstance(entry, dict) or not any(name.startswith("$") for name in entry):
        return same(value, entry)
    results = []
    for name, operand in entry.items():
        match name:
            case "$in":
                results.append(any(same(value, member) for member in operand))
            case "$ne":
                results.append(not same(value, operand))
            case "$gte":
                results.append(comparable(value, operand) and value >= operand)
            case _:
                results.append(comparable(value, operand) and value <= operand)
    return all(results)


@given(documents, filters)
def test_a_filter_matches_documents_by_its_documented_rules(metadata: list[dict[str, Json]], raw: dict[str, Json]) -> None:
    for one in metadata:
        expected = all(matches_value(one.get(field), entry) for field, entry in raw.items())
        assert parse_filter(raw).matches(one) is expected


@given(values, values)
def test_keys_are_equal_if_and_only_if_the_values_are(left: Json, right: Json) -> None:
    assert (metadata_key(left) == metadata_key(right)) is matches_value(left, {"$in": [right]})


@pytest.mark.parametrize(
    ("raw", "matching", "other"),
    [
        ({"n": 1}, {"n": 1.0}, {"n": True}),
        ({"n": True}, {"n": True}, {"n": 1}),
        ({"n": 2**53}, {"n": 2**53}, {"n": 2**53 + 1}),
        ({"n": None}, {}, {"n": 0}),
        ({"n": {"$ne": 1}}, {}, {"n": 1}),
        ({"n": {"$ne": None}}, {"n": False}, {"n": None}),
        ({"n": {"$in": [None, "a"]}}, {}, {"n": "b"}),
        ({"n": {"$in": []}, "m": None}, {}, {}),
        ({"n": {"$gte": 2, "$lte": 3}}, {"n": 2.5}, {"n": "2.5"}),
        ({"n": {"$gte": "2026-01"}}, {"n": "2026-01-01"}, {"n": 2027}),
        ({"n": {"$gte": "z"}}, {"n": "é"}, {"n": "a"}),
        ({"n": {"$gte": False}}, {"n": 1}, {"n": True}),
        ({"n": {"$gte": 1, "$ne": 2, "$in": [1, 2, 3]}}, {"n": 3}, {"n": 2}),
        ({"n": {"k": [1]}}, {"n": {"k": [1.0]}}, {"n": {"k": [1, 2]}}),
        ({"n": ["a", "b"]}, {"n": ["a", "b"]}, {"n": ["b", "a"]}),
    ],
)
def test_a_filter_matches_one_document_and_not_the_other(
    raw: dict[str, Json], matching: dict[str, Json], other: dict[str, Json]
) -> None:
    never = raw["n"] in ({"$in": []}, {"$gte": False})
    assert columns_match([matching, other], raw) == [not never, False]


@pytest.mark.parametrize(
    "raw",
    [
        {"$or": [{"n": 1}, {"n": 2}]},
        {"n": {"$gt": 1}},
        {"n": {"$gte": 1, "plain": 2}},
        {"n": {}},
        {"n": {"$in": 3}},
        {"n": {"$in": "abc"}},
        {"n": {"$in": {"a": 1}}},
        {"n": float("nan")},
        {"n": "\ud800"},
        {"n": {"$in": list(range(5000))}},
    ],
)
def test_an_invalid_filter_is_refused(raw: dict[str, Json]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_filter(raw)
    assert refused.value.param == "filter"


def test_a_very_deep_filter_is_refused() -> None:
    deep: Json = 1
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        parse_filter({"n": deep})


@given(documents)
def test_decoded_lines_equal_the_encoded_lines(metadata: list[dict[str, Json]]) -> None:
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in metadata)
    assert decode_meta(encode_meta(lines)) == lines


def test_a_column_of_few_values_takes_one_byte_for_each_row() -> None:
    lines = b"".join(b'{"lang":"%s","n":%d}\n' % (b"de" if n % 2 else b"en", n) for n in range(10_000))
    directory = decode_directory(encode_meta(lines))
    sizes = {field: end - start for field, (start, end) in directory.columns.items()}
    assert sizes["lang"] < 10_100
    assert sizes["n"] < 12 * 10_000


def test_many_different_fields_take_at_most_ten_times_their_bytes() -> None:
    """With more memory, a merge of such documents would exceed the memory of its worker at every attempt."""
    fields = ([b'"%x-%x":1' % (row, n) for n in range(120)] for row in range(2000))
    lines = b"".join(b'{"lang":"de",%s}\n' % b",".join(own) for own in fields)
    tracemalloc.start()
    directory = decode_directory(encode_meta(lines))
    encode_missing_column(lines, "7-7")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * len(lines)
    assert "lang" in directory.columns
    assert not directory.complete
