"""Estimate the tokens of a call as characters / 4, rounded up."""

import json
from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, Image, Message, TokenUsage
from spass.llm.types import ChatRequest

TYPICAL_ANSWER_TOKENS: Final = 1024
"""Tokens reserved for an answer without ``max_tokens``."""

_TOKENS_PER_IMAGE: Final = 1000  # OpenAI and Anthropic count 700 to 1600 tokens for an image of a screen's size


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def expected_usage(request: ChatRequest, window: int) -> TokenUsage:
    """Return an upper estimate of the tokens of ``request``. It is reserved before the call, and charged for a lost answer.

    The prompt includes the tools and the schema of the answer. The answer counts as ``max_tokens``, or as
    ``TYPICAL_ANSWER_TOKENS``, but at most as the model's ``window`` of tokens: more would only block other calls.
    """
    characters = sum(map(count_characters, request.messages))
    characters += sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in request.tools)
    answer_format = request.response_format or {}
    if answer_format.get("type") == "json_schema":
        characters += len(json.dumps(answer_format))
    return TokenUsage(estimate_tokens(characters), min(request.max_tokens or TYPICAL_ANSWER_TOKENS, window))


def count_characters(message: Message) -> int:
    """Return the characters of a message: of its text and its tool calls, and an equivalent for its images."""
    images = sum(isinstance(part, Image) for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + calls + images * _TOKENS_PER_IMAGE * CHARACTERS_PER_TOKEN
