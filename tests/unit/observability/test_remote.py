"""Parse a ``traceparent`` as W3C says: https://www.w3.org/TR/trace-context/#traceparent-header-field-values."""

import pytest

from spass.observability.remote import RemoteSpan, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("form", ["00-{}-01", "00-{}-00", "01-{}-ff", "cc-{}-01-what-comes-later"])
def test_the_span_of_a_version_is_read(form: str) -> None:
    assert parse_traceparent(form.format(f"{TRACE}-{SPAN}")) == RemoteSpan(TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x" * 10_240,
        f"00-{TRACE}-{SPAN}-01" + "0" * 10_240,
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{'١' * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_a_malformed_one_is_none(text: str | None) -> None:
    assert parse_traceparent(text) is None
