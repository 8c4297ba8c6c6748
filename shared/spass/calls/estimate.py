"""Estimate the tokens of a call as characters / 4, rounded up."""

from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, TokenUsage

TYPICAL_ANSWER_TOKENS: Final = 1024
"""Tokens reserved for an answer without ``max_tokens``."""


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def expected_usage(prompt_characters: int, max_tokens: int | None, window: int) -> TokenUsage:
    """Return an upper estimate of the tokens of a chat. It is reserved before the call, and charged for a lost answer.

    The answer counts as ``max_tokens``, or as ``TYPICAL_ANSWER_TOKENS``, but at most as the model's ``window`` of tokens: more
    would only block other calls.
    """
    return TokenUsage(estimate_tokens(prompt_characters), min(max_tokens or TYPICAL_ANSWER_TOKENS, window))
