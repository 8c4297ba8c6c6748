"""Estimate the tokens of a call, and count those of one attempt at a backend, whether its answer arrives or is lost."""

from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, TokenUsage

TYPICAL_ANSWER_TOKENS: Final = 1024
"""Tokens reserved for an answer without ``max_tokens``."""
_NONE: Final = TokenUsage()


def estimate_tokens(characters: int) -> int:
    """Return characters / 4, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def expected_usage(prompt_characters: int, max_tokens: int | None, window: int) -> TokenUsage:
    """Return an upper estimate of the tokens of a chat. It is reserved before the call, and charged for a lost answer.

    The answer counts as ``max_tokens``, or as ``TYPICAL_ANSWER_TOKENS``, but at most as the model's ``window`` of tokens: more
    would only block other calls.
    """
    return TokenUsage(estimate_tokens(prompt_characters), min(max_tokens or TYPICAL_ANSWER_TOKENS, window))


class Attempt:
    """One attempt at a backend. ``expected_usage`` estimates its tokens.

    ``sent`` is True if the backend may have received the whole request and did not refuse it with an error status. Such an
    attempt may be billed. ``started`` is True once the answer has begun to arrive.
    """

    def __init__(self, expected_usage: TokenUsage = _NONE) -> None:
        self.expected_usage = expected_usage
        self.sent = False
        self.started = False
        self._provider_usage = _NONE  # the provider's counts; 0 is unknown
        self._characters_since_count = 0  # characters since the provider's last count

    def record_chunk(self, characters: int, counted: TokenUsage | None) -> None:
        """Add a piece of the answer. ``counted`` is the provider's count for the answer so far, if any."""
        self.started = True
        self._characters_since_count += characters
        if counted is None:
            return
        if counted.completion_tokens:
            self._characters_since_count = 0
        self._provider_usage = TokenUsage(
            counted.prompt_tokens or self._provider_usage.prompt_tokens,
            counted.completion_tokens or self._provider_usage.completion_tokens,
        )

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens of this attempt: the provider's counts, plus an estimate for text that the provider did not count. A
        lost answer counts as ``expected_usage``, because the provider may have written all of it."""
        if not self.started:
            return self.expected_usage if self.sent else _NONE
        return TokenUsage(
            self._provider_usage.prompt_tokens or self.expected_usage.prompt_tokens,
            self._provider_usage.completion_tokens + estimate_tokens(self._characters_since_count),
        )

    @property
    def estimated(self) -> bool:
        """Return True if some of ``usage`` is an estimate."""
        counted = self.started and self._provider_usage.prompt_tokens and not self._characters_since_count
        return not counted and self.usage != _NONE
