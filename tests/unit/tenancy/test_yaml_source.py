"""The strict reader of YAML."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Json
from spass.tenancy.yaml_source import ConfigError, load_yaml, parse_yaml

NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(categories=("L", "N"))), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_json_is_read_as_a_json_parser_reads_it(data: Json) -> None:
    assert parse_yaml(json.dumps(data, ensure_ascii=False), "x.yaml").data == data


@given(st.text())
def test_any_text_is_data_or_a_config_error(text: str) -> None:
    try:
        parse_yaml(text, "x.yaml")
    except ConfigError as error:
        assert str(error).startswith("x.yaml")  # noqa: PT017 (most texts are valid)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "x.yaml:1: the anchor &x is not allowed"),
        ("a: 1\nb: *x", "x.yaml:2: the alias *x is not allowed"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "x.yaml:4: the key 'c' occurs a second time here"),
        ("a: 1\n1: 2", "x.yaml:2: a key must be text; put it in quotes"),
        ("? [a]\n: 1", "x.yaml:1: a key must be text"),
        ("a: !!python/object:os.system ls", "x.yaml:1: the tag tag:yaml.org,2002:python/object:os.system is not allowed"),
        ("a: !env HOME", "x.yaml:1: the tag !env is not allowed"),
        ("a: 1\n---\nb: 1", "x.yaml:2: a second document begins here"),
        ("a: 1\nb: [", "x.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 1", "x.yaml:2: not valid YAML"),
        ("a: \x00", "x.yaml: not valid YAML"),
        ("[" * 40 + "]" * 40, "x.yaml:1: nested deeper than 32 levels"),
        ("a:\n  - b: 1\n    c 2\n    d: 3", "x.yaml:4: not valid YAML: check indentation, colons and tabs around line 4 ("),
        ("a:\n  b: 1\n c: 2", "x.yaml:3: not valid YAML: check indentation, colons and tabs around line 3 ("),
        ("a: 'open\nb: 1\nc: 2", "x.yaml:3: not valid YAML: check the quote or bracket that opens in line 1 ("),
        ("a:\n  [1,\n  2\nb: 3\nc: 4", "x.yaml:4: not valid YAML: check the quote or bracket that opens in line 2 ("),
        ("a: 1\nb: [\n", "x.yaml:2: not valid YAML: check the quote or bracket that opens in line 2 ("),
    ],
)
def test_refused_yaml_is_reported_with_its_line_or_the_place_to_check(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "x.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("current", "given", "shown"),
    [
        (".", "{folder}/a/bar.yaml", "a/bar.yaml"),
        ("a", "{folder}/a/bar.yaml", "bar.yaml"),
        ("b", "{folder}/a/bar.yaml", "{folder}/a/bar.yaml"),
        ("b", "../a/bar.yaml", "../a/bar.yaml"),
        (".", "a/bar.yaml", "a/bar.yaml"),
    ],
)
def test_messages_name_the_file_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: str, given: str, shown: str
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "bar.yaml").write_text("a: 1\na: 2\n")
    monkeypatch.chdir(tmp_path / current)
    shown = shown.format(folder=tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_yaml(Path(given.format(folder=tmp_path)))
    assert str(caught.value).startswith(f"{shown}:2: ")
    (tmp_path / "a" / "bar.yaml").unlink()
    with pytest.raises(ConfigError) as caught:
        load_yaml(Path(given.format(folder=tmp_path)))
    assert str(caught.value) == f"{shown}: cannot read the file: No such file or directory"


def test_messages_name_the_file_after_the_current_folder_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "bar.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/bar.yaml: ")


def test_scalars_follow_the_core_schema() -> None:
    source = parse_yaml("{country: no, octal: 010, time: 12:30, day: 2026-01-02, quoted: '5', none: ~, price: 1e-3}", "x.yaml")
    assert source.data == {
        "country": "no",
        "octal": 10,
        "time": "12:30",
        "day": "2026-01-02",
        "quoted": "5",
        "none": None,
        "price": 0.001,
    }


def test_each_value_has_its_line() -> None:
    source = parse_yaml("a:\n  - b: 1\n    c:\n      - x\n      - y\n", "x.yaml")
    assert source.line_of(("a", 0, "c", 1)) == 5
    assert source.line_of(("a", 0, "b")) == 2
    assert source.line_of(("a", 0, "missing")) == 2
    assert source.line_of(()) == 1


def test_the_loader_in_python_reads_the_same() -> None:
    text = "a: [1, 'two', {b: ~}]\nc: |\n  text\n"
    assert parse_yaml(text, "x.yaml", loader=yaml.SafeLoader) == parse_yaml(text, "x.yaml")
