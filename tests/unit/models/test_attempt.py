"""The estimated tokens of a call, and the usage of an attempt: the provider's counts, and an estimate of the rest."""

import json
from dataclasses import replace

import pytest

from spass.core.messages import Image, Json, Message, Role, TokenUsage
from spass.models.attempt import Attempt, expected_usage
from spass.models.types import ChatRequest

EXPECTED = TokenUsage(100, 1000)


def usage_of(*pieces: tuple[int, TokenUsage | None]) -> tuple[TokenUsage, bool]:
    attempt = Attempt(EXPECTED)
    attempt.sent = True
    for characters, counted in pieces:
        attempt.record_chunk(characters, counted)
    return attempt.usage, attempt.estimated


def test_an_attempt_that_was_not_sent_has_no_usage() -> None:
    attempt = Attempt(EXPECTED)
    assert (attempt.usage, attempt.estimated) == (TokenUsage(), False)


def test_an_attempt_whose_answer_is_lost_has_the_expected_usage() -> None:
    assert usage_of() == (EXPECTED, True)


@pytest.mark.parametrize(
    ("pieces", "usage", "estimated"),
    [
        ([(40, TokenUsage(7, 9))], TokenUsage(7, 9), False),
        ([(40, None), (0, TokenUsage(7, 9))], TokenUsage(7, 9), False),
        ([(40, None), (1, None)], TokenUsage(100, 11), True),
        ([(40, TokenUsage(7, 0))], TokenUsage(7, 10), True),
        ([(40, TokenUsage(0, 9))], TokenUsage(100, 9), True),
        ([(40, TokenUsage(0, 0))], TokenUsage(100, 10), True),
        ([(0, TokenUsage(7, 0))], TokenUsage(7, 0), False),
    ],
)
def test_text_that_the_provider_did_not_count_is_estimated(
    pieces: list[tuple[int, TokenUsage | None]], usage: TokenUsage, estimated: bool
) -> None:
    assert usage_of(*pieces) == (usage, estimated)


@pytest.mark.parametrize(
    ("pieces", "usage", "estimated"),
    [
        ([(0, TokenUsage(7, 1)), (40, None)], TokenUsage(7, 11), True),
        ([(40, TokenUsage(7, 50)), (8, None)], TokenUsage(7, 52), True),
        ([(40, TokenUsage(7, 50)), (8, TokenUsage(7, 53))], TokenUsage(7, 53), False),
        ([(40, TokenUsage(7, 50)), (0, TokenUsage(0, 0))], TokenUsage(7, 50), False),
        ([(0, TokenUsage(7, 1)), (40, None), (0, TokenUsage(0, 0))], TokenUsage(7, 11), True),
        ([(0, TokenUsage(7, 0)), (40, None), (0, TokenUsage(0, 12))], TokenUsage(7, 12), False),
    ],
)
def test_text_after_the_last_count_is_added_to_it(
    pieces: list[tuple[int, TokenUsage | None]], usage: TokenUsage, estimated: bool
) -> None:
    assert usage_of(*pieces) == (usage, estimated)


def expected(request: ChatRequest, window: int) -> TokenUsage:
    return expected_usage(request.count_characters(), request.max_tokens, window)


def test_an_image_counts_as_a_fixed_number_of_tokens() -> None:
    text = Message(Role.USER, "a" * 400)
    parts = (text.content, Image("data:image/png;base64," + "A" * 4_000_000), Image("https://example.com/cat.png"))
    with_images = Message(Role.USER, text.content, parts=parts)
    assert expected(ChatRequest("m", (text,), max_tokens=9), 5000) == TokenUsage(100, 9)
    assert expected(ChatRequest("m", (with_images,), max_tokens=9), 5000) == TokenUsage(2100, 9)


def test_a_heading_is_part_of_the_prompt() -> None:
    state = Message(Role.USER, "a" * 400, data=True, heading="b" * 40)
    assert expected(ChatRequest("m", (state,), max_tokens=9), 5000) == TokenUsage(110, 9)


def test_the_expected_answer_is_at_most_the_context_window() -> None:
    request = ChatRequest("m", (Message(Role.USER, "a" * 400),), max_tokens=2**31 - 1)
    assert expected(request, 5000) == TokenUsage(100, 5000)
    assert expected(replace(request, max_tokens=None), 5000) == TokenUsage(100, 1024)
    assert expected(replace(request, max_tokens=None), 256) == TokenUsage(100, 256)


def test_the_schema_of_an_answer_is_part_of_the_prompt() -> None:
    properties: Json = {f"field-{number}": {"type": "string"} for number in range(1000)}
    schema: Json = {"type": "object", "properties": properties}
    plain = ChatRequest("m", (Message(Role.USER, "a" * 400),), response_format={"type": "json_object"})
    with_schema = replace(plain, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert expected(plain, 5000).prompt_tokens == 100
    assert expected(with_schema, 5000).prompt_tokens > 100 + len(json.dumps(schema)) // 4
