"""The arguments of a written call are those that the model wrote, or the text stays as it is and the toolbox refuses it."""

import json
import time
import warnings
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.written_arguments import arguments_text
from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json, ToolSpec


def tool(*required: str, **types: str) -> ToolSpec:
    return ToolSpec(
        "tool",
        "",
        {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}, "required": list(required)},
    )


ONE_STRING: Final = tool("text", text="string", limit="integer")
TWO_STRINGS: Final = tool("text", "more", text="string", more="string")
NOTHING: Final = tool()


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1.0}', {"a": 1.0}),
        (' \n{"a": {"b": [1, "}"]}}\n', {"a": {"b": [1, "}"]}}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": 1}\n```\nNow I wait.', {"a": 1}),
        ('~~~\n{"a": 1}\n~~~', {"a": 1}),
        ('```json\n{"a": 1}', {"a": 1}),
        ('{"a": 1}\n```', {"a": 1}),
        ('{"a": 1}\n\nNow I wait for "it" {', {"a": 1}),
        ("{'a': \"it's\", 'b': None, 'c': True, 'd': False}", {"a": "it's", "b": None, "c": True, "d": False}),
        ("{'a': (1, -2.5, +3,), 'b': {'c': []},}", {"a": [1, -2.5, 3], "b": {"c": []}}),
        (r"{'a': 'tab\t \x41 \u0041 \'quoted\''}", {"a": "tab\t A A 'quoted'"}),
        ("```python\n{'a': 1}\n```", {"a": 1}),
        ("{}", {}),
        ("", {}),
        ("null", {}),
        ("None", {}),
        ("```\n```", {}),
    ],
)
@pytest.mark.parametrize("spec", [ONE_STRING, TWO_STRINGS, NOTHING, None])
def test_objects_and_literals_are_read_for_every_tool(text: str, arguments: Mapping[str, Json], spec: ToolSpec | None) -> None:
    assert json.loads(arguments_text(text, spec)) == arguments


def test_a_json_object_is_passed_on_as_it_was_written() -> None:
    assert arguments_text('{"a":  1.0, "b": 1e2, "c": "\\u00e4"} and so on', None) == '{"a":  1.0, "b": 1e2, "c": "\\u00e4"}'


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("2+2", "2+2"),
        (' "2+2" ', "2+2"),
        ("'2+2'", "2+2"),
        ('"a \\"b\\" \\u00e4"', 'a "b" ä'),
        ('"a" or "b"', '"a" or "b"'),
        ("'a' or 'b'", "'a' or 'b'"),
        ('"open', '"open'),
        ("line one\n  line two", "line one\n  line two"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)", "print(1)"),
        ("print(1)\n```", "print(1)"),
        ("see\n```\nx\n```", "see\n```\nx\n```"),
        ("[1, 2]", "[1, 2]"),
        ("7", "7"),
        ("the {braces}", "the {braces}"),
    ],
)
def test_bare_text_is_the_only_required_string(text: str, bare: str) -> None:
    assert json.loads(arguments_text(text, ONE_STRING)) == {"text": bare}
    assert json.loads(arguments_text(text, tool(text="string"))) == {"text": bare}


@pytest.mark.parametrize(
    "spec",
    [
        None,
        NOTHING,
        TWO_STRINGS,
        tool("number", number="integer"),
        tool("number", number="integer", text="string"),
        tool(text="string", more="string"),
        ToolSpec("tool", "", {}),
        ToolSpec("tool", "", {"properties": {"a": True}, "required": "a"}),
        ToolSpec("tool", "", {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}),
        ToolSpec("tool", "", {"properties": {}, "required": ["a"]}),
    ],
)
def test_bare_text_is_refused_for_other_tools(spec: ToolSpec | None) -> None:
    assert arguments_text("2+2", spec) == "2+2"
    with pytest.raises(InvalidJson):
        read_object("2+2")


def test_text_without_a_marker_is_no_bare_text() -> None:
    assert arguments_text("I wait.", ONE_STRING, is_marked=False) == "I wait."
    assert arguments_text('{"text": "x"}', ONE_STRING, is_marked=False) == '{"text": "x"}'


BROKEN: Final = [
    '{"text": "2',
    '{"text": "2"',
    '{"text" "2"}',
    '{"text": "2"}}',
    '{"text": "2"}, {"text": "3"}',
    '{"text": "2"} + {"text": "3"}',
    '{"text": 1, "text": 2}',
    "{'text': 1, 'text': 2}",
    '{"text": NaN}',
    '{"text": undefined}',
    "{'text': nan}",
    "{'text': {1, 2}}",
    "{'text'}",
    "{1: 'text'}",
    "{None: 'text'}",
    "{**{}}",
    "{'text': b'2'}",
    "{'text': f'2'}",
    "{'text': 2j}",
    "{'text': ...}",
    "{'text': open('x')}",
    "{'text': 1 + 1}",
    "{'text': -'2'}",
    "{'text': 1or 2}",
    "{'text': 'a' 'b'}",
    "{'text': '\\d'}",
    "{'text': '''2'''}",
    "{'text': 0x10}",
    "{'text': 010}",
    "{'text': 1_000}",
    "{'text': 1e999}",
    "{'text': " + "9" * 100 + "}",
    "{" * 200,
    '{"a":' * 40 + "1" + "}" * 40,
    "{'a':" * 40 + "1" + "}" * 40,
    '{"text": "' + "x" * 70_000 + '"}',
    "{'text': '" + "x" * 70_000 + "'}",
    "{" * 60_000,
    "{'a': " + "(" * 60_000,
    "{'a': " + "'" * 60_000,
    '{"a": "' + "\\" * 60_000,
    "{" + "'a', " * 12_000,
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("spec", [ONE_STRING, TWO_STRINGS, NOTHING, None])
def test_nothing_is_repaired(text: str, spec: ToolSpec | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given_text = arguments_text(text, spec)
    assert given_text == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", "\nNow I wait.", "\n```", " // done"]))
def test_any_json_object_is_read_exactly(value: Mapping[str, Json], ascii_only: bool, indent: int | None, end: str) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert arguments_text(text + end, None) == text
    assert json.loads(arguments_text(f"```json\n{text}\n```{end}", ONE_STRING)) == value


@given(OBJECTS)
def test_any_python_literal_is_read_exactly_or_not_at_all(value: Mapping[str, Json]) -> None:
    text = repr(value)
    read = arguments_text(text, None)
    assert read == text or json.loads(read) == value


@given(st.text(max_size=60))
def test_any_text_is_an_object_or_stays_as_it_is(text: str) -> None:
    read = arguments_text(text, TWO_STRINGS)
    assert read == text or isinstance(json.loads(read), dict)


@pytest.mark.parametrize(
    "text",
    [
        "```" + 60_000 * " " + "(",
        "```" + 30_000 * " " + "x" + 30_000 * " " + "(",
        "{" + 32_000 * '\\"',
        "{" + 32_000 * "\\'" + "\\",
    ],
    ids=["blanks-after-a-fence", "blanks-around-a-language", "escaped-quotes", "escaped-apostrophes"],
)
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    started = time.process_time()
    assert arguments_text(text, NOTHING) == text
    assert time.process_time() - started < 1
