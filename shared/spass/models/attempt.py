"""Estimate the tokens of a call, and count the tokens of its attempts at backends, whether an answer arrives or is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class RoutingRecord:
    """The backend of a call's last attempt, the number of attempts and their tokens. Also valid after a failure.

    ``answered_usage`` counts the attempt whose answer arrived or began to arrive. ``failed_attempt_usage`` counts the attempts
    without an answer, which the provider may bill. ``estimated`` is True if some of these tokens are an estimate.
    """

    backend: str | None = None
    attempts: int = 0
    answered_usage: TokenUsage = field(default_factory=TokenUsage)
    failed_attempt_usage: TokenUsage = field(default_factory=TokenUsage)
    estimated: bool = False

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens of all attempts."""
        return self.answered_usage + self.failed_attempt_usage

    def add(self, other: "RoutingRecord") -> None:
        """Add the attempts of another request of the same call, and their tokens."""
        self.attempts += other.attempts
        self.answered_usage += other.answered_usage
        self.failed_attempt_usage += other.failed_attempt_usage
        self.estimated |= other.estimated

    @contextmanager
    def count_attempt(self, backend: str, attempt: Attempt) -> Iterator[None]:
        """Count one attempt at ``backend`` and, when the body ends, the tokens that ``attempt`` took."""
        self.backend = backend
        self.attempts += 1
        try:
            yield
        finally:
            if attempt.started:
                self.answered_usage += attempt.usage
            else:
                self.failed_attempt_usage += attempt.usage
            self.estimated |= attempt.estimated
