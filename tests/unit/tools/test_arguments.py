"""Parsing of the arguments that a model writes, and the errors that it reads."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Json
from spass.tools.base import MAX_ARGUMENTS_BYTES, MAX_ARGUMENTS_DEPTH, InvalidArguments, parse_arguments


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("text", ["", "  ", "{}", " {} \n"])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("expression=1", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1} {"b": 2}', "not valid JSON"),
        ("[1]", "one JSON object"),
        ('"a"', "one JSON object"),
        ("null", "one JSON object"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"x": {"a": 1, "b": 1, "a": 1}}', "'a' stands twice"),
        ('{"\\ud800": 1, "\\ud800": 2}', "twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('{"a": "\\ud83d"}', "surrogate"),
        ('{"\\udc00": 1}', "surrogate"),
        ('{"a": "\ud800"}', "surrogate"),
        (nested(MAX_ARGUMENTS_DEPTH + 1), "nested deeper"),
        (nested(9000), "nested deeper"),
        ('{"a":' + "[" * 20000, "nested deeper"),
        (json.dumps({"a": "x" * MAX_ARGUMENTS_BYTES}), "longer than"),
    ],
)
def test_anything_but_a_plain_json_object_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        parse_arguments(text)
    assert reason in caught.value.message
    assert caught.value.code == "invalid_arguments"
    caught.value.message.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_every_plain_json_object_is_parsed(value: dict[str, Json]) -> None:
    assert parse_arguments(json.dumps(value, ensure_ascii=False)) == value


@given(st.text(alphabet='{}[]":,0123456789eE.-+ntfalsrue\\ud8 ', max_size=40))
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    with suppress(InvalidArguments):
        json.dumps(parse_arguments(text), allow_nan=False).encode()
