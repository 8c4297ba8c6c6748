"""Estimate the tokens of a call as characters / 4, rounded up."""

import json
from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, Image, Message, TokenUsage
from spass.llm.types import ChatRequest

TYPICAL_ANSWER_TOKENS: Final = 1024
"""Tokens reserved for an answer without ``max_tokens``."""

_TOKENS_PER_PICTURE: Final = 1000
"""OpenAI and Anthropic count some 700 to 1600 tokens for a picture of a screen's size."""


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def expected_usage(request: ChatRequest, window: int) -> TokenUsage:
    """Return the tokens that ``request`` probably takes at most: reserved before the call, and settled for a lost answer.

    Tools and the schema of the answer count as they are described to the model. The answer counts as ``max_tokens``, or as
    ``TYPICAL_ANSWER_TOKENS``, but at most as the model's ``window`` of tokens: more would only block other calls.
    """
    spoken = sum(map(count_characters, request.messages))
    offered = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in request.tools)
    shape = request.response_format or {}
    shaped = len(json.dumps(shape)) if shape.get("type") == "json_schema" else 0
    return TokenUsage(estimate_tokens(spoken + offered + shaped), min(request.max_tokens or TYPICAL_ANSWER_TOKENS, window))


def count_characters(message: Message) -> int:
    """Return the characters that a message counts for: its text, its tool calls, and an equivalent for its images."""
    pictures = sum(isinstance(part, Image) for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + calls + pictures * _TOKENS_PER_PICTURE * CHARACTERS_PER_TOKEN
