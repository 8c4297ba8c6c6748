"""Preconditions in requests: the forms of RFC 9110, and what each means for a file with a content, or for an absent one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from spass.core.errors import InvalidRequest
from spass.web.file_responses import Preconditions, etag

THIS, OTHER = "a" * 64, "b" * 64


def preconditions(*headers: tuple[str, str]) -> Preconditions:
    return Preconditions.of(Headers(raw=[(name.lower().encode(), value.encode("latin-1")) for name, value in headers]))


def test_a_request_without_preconditions_has_none() -> None:
    assert not preconditions()
    assert preconditions().hold(THIS)
    assert preconditions().hold(None)


@pytest.mark.parametrize(
    ("header", "value", "holds_for_this", "holds_for_absent"),
    [
        ("If-Match", f'"{THIS}"', True, False),
        ("If-Match", f'"{OTHER}"', False, False),
        ("If-Match", f'"{OTHER}", "{THIS}"', True, False),
        ("If-Match", f'"{OTHER}"\t ,"{THIS}"', True, False),
        ("If-Match", "*", True, False),
        ("If-Match", " * ", True, False),
        ("If-Match", f'W/"{THIS}"', False, False),
        ("If-Match", f'W/"{THIS}", "{THIS}"', True, False),
        ("If-Match", f'"{THIS.upper()}"', False, False),
        ("If-Match", '""', False, False),
        ("If-Match", '"a,b", "c"', False, False),
        ("If-Match", f', ,"{THIS}",', True, False),
        ("If-None-Match", "*", False, True),
        ("If-None-Match", f'"{THIS}"', False, True),
        ("If-None-Match", f'W/"{THIS}"', False, True),
        ("If-None-Match", f'"{OTHER}"', True, True),
        ("If-None-Match", f'"{OTHER}", "{THIS}"', False, True),
    ],
)
def test_a_precondition_holds_as_the_rfc_says(header: str, value: str, holds_for_this: bool, holds_for_absent: bool) -> None:
    found = preconditions((header, value))
    assert found
    assert (found.hold(THIS), found.hold(None)) == (holds_for_this, holds_for_absent)


def test_repeated_headers_are_one_list_and_both_headers_must_hold() -> None:
    repeated = preconditions(("If-Match", f'"{OTHER}"'), ("If-Match", f'"{THIS}"'))
    assert repeated.hold(THIS)
    both = preconditions(("If-Match", f'"{THIS}"'), ("If-None-Match", "*"))
    assert not both.hold(THIS)
    assert not both.hold(None)


@pytest.mark.parametrize(
    "value", ["", THIS, f"'{THIS}'", f'"{THIS}', f'w/"{THIS}"', f'"{THIS}" "x"', '*, "x"', '"x", *', ",", '"a b"', "**"]
)
@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_another_form_is_refused_with_the_form_to_send(header: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match="in quotes") as raised:
        preconditions((header, value))
    assert raised.value.param == header


TAGS = st.lists(st.tuples(st.booleans(), st.sampled_from([THIS, OTHER, "", "x,y"])), min_size=1, max_size=5)


@given(TAGS, st.sampled_from([",", ", ", " ,\t", ",,"]))
def test_of_any_list_exactly_the_strong_tags_match(tags: list[tuple[bool, str]], separator: str) -> None:
    value = separator.join(("W/" if weak else "") + etag(text) for weak, text in tags)
    assert preconditions(("If-Match", value)).hold(THIS) == ((False, THIS) in tags)
    assert preconditions(("If-None-Match", value)).hold(THIS) == (THIS not in [text for _, text in tags])


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=200))
def test_any_header_is_read_or_refused(value: str) -> None:
    try:
        found = preconditions(("If-Match", value))
    except InvalidRequest:
        return
    assert found
