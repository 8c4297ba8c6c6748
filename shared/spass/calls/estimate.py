"""Tokens of a call whose provider did not count them: characters / 4, rounded up."""

import json
from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, Image, Message, TokenUsage
from spass.llm.types import ChatRequest

TYPICAL_ANSWER_TOKENS: Final = 1024
"""Tokens reserved for an answer whose length nobody bounds."""

_TOKENS_PER_PICTURE: Final = 1000
"""OpenAI's and Anthropic's take some 700 to 1600 for a picture of a screen's size."""


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def expected_usage(request: ChatRequest, window: int) -> TokenUsage:
    """Return what ``request`` will probably take at most: reserved before the call, and settled for a try whose answer is lost.

    Tools, and the schema of the answer, count as they are described to the model. The answer is as long as ``max_tokens`` allows,
    or ``TYPICAL_ANSWER_TOKENS``, but never longer than the model's ``window`` of tokens: a larger number would only take the
    room of other
    calls.
    """
    asked = sum(map(count_characters, request.messages))
    offered = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in request.tools)
    shape = request.response_format or {}
    shaped = len(json.dumps(shape)) if shape.get("type") == "json_schema" else 0
    return TokenUsage(estimate_tokens(asked + offered + shaped), min(request.max_tokens or TYPICAL_ANSWER_TOKENS, window))


def count_characters(message: Message) -> int:
    """What a message weighs in an estimate: its words, the tool calls it asks for, and its pictures in their stead."""
    pictures = sum(isinstance(part, Image) for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + calls + pictures * _TOKENS_PER_PICTURE * CHARACTERS_PER_TOKEN
