"""What a provider says, without what nobody else may know."""

import pytest

from spass.llm.scrub import LONGEST, scrub


@pytest.mark.parametrize(
    "secret",
    [
        "https://internal.example.com:8080/v1/chat?key=1",
        "sk-proj-abcDEF1234567890",
        "sk-ab***********wxyz",
        "xai-Zz12345678",
        "AKIAIOSFODNN7EXAMPLE",
        "org-a1b2c3d4e5",
        "arn:aws:iam::123456789012:role/thing",
        "Bearer abc.def",
        "model-gateway.prod.internal:9000",
        "10.0.12.7:8000",
        "/usr/lib/python3/site.py",
    ],
)
def test_keys_and_addresses_are_taken_out(secret: str) -> None:
    cleaned = scrub(f"It failed with {secret} just now")
    assert cleaned == "It failed with […] just now"


def test_our_own_key_is_taken_out_whatever_it_looks_like() -> None:
    assert scrub("no such key: hunter two", secret="hunter two") == "no such key: […]"


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000/8192 tokens.",
        "Invalid value: 'foo'. Supported values are: 'auto', 'none', and/or 'required'.",
        "messages.0.content: text content blocks must be non-empty",
        "The model `gpt-4o-mini-2024-07-18` does not exist or you do not have access to it.",
        "Unknown field projection_2024_x; the keyword1234 is taken.",
        "temperature: 3.5 is above the maximum of 2.0, e.g. use 1",
    ],
)
def test_what_helps_the_caller_stays(words: str) -> None:
    assert scrub(words) == words


def test_a_long_or_many_lined_message_becomes_one_short_line() -> None:
    assert scrub("a\r\nb\x00c") == "a b c"
    assert len(scrub("word " * 1000)) == LONGEST
