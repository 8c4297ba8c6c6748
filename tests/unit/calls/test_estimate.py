"""Test the estimated tokens of a call."""

import json
from dataclasses import replace

from spass.calls.estimate import expected_usage
from spass.core.messages import Image, Json, Message, Role, TokenUsage
from spass.models.types import ChatRequest


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
