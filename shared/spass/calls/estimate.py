"""Tokens of a call whose provider did not count them: characters / 4, rounded up."""

import json
from typing import Final

from spass.core.messages import Image, Message, Role, TokenUsage
from spass.llm.types import ChatRequest

CHARACTERS_PER_TOKEN: Final = 4

USUAL_ANSWER: Final = 1024
"""Tokens reserved for an answer whose length nobody bounds."""

_TOKENS_PER_PICTURE: Final = 1000
"""OpenAI's and Anthropic's take some 700 to 1600 for a picture of a screen's size."""

_NOTHING_SAID: Final = Message(Role.ASSISTANT, "")


def estimated_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def estimated_usage(request: ChatRequest, answer: Message) -> TokenUsage:
    """What ``answer`` to ``request`` probably took. Tools count as they are described to the model."""
    asked = sum(map(characters, request.messages))
    offered = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in request.tools)
    return TokenUsage(estimated_tokens(asked + offered), estimated_tokens(characters(answer)))


def expected_usage(request: ChatRequest, window: int) -> TokenUsage:
    """What ``request`` will probably take at most, for reservations: the answer as long as it may be, or ``USUAL_ANSWER``; and no
    longer than the model's ``window`` of tokens, since what nobody can say would take everybody's room meanwhile."""
    answer = min(request.max_tokens or USUAL_ANSWER, window)
    return TokenUsage(estimated_usage(request, _NOTHING_SAID).prompt_tokens, answer)


def characters(message: Message) -> int:
    """What a message weighs in an estimate: its words, the tool calls it asks for, and its pictures in their stead."""
    pictures = sum(isinstance(part, Image) for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + calls + pictures * _TOKENS_PER_PICTURE * CHARACTERS_PER_TOKEN
