"""Count the tokens that one try at a backend takes, whether its answer arrives or is lost."""

from typing import Final

from spass.core.messages import CHARACTERS_PER_TOKEN, TokenUsage

_NONE: Final = TokenUsage()


class Attempt:
    """One try at a backend, which should take ``expected`` tokens.

    The provider sets ``sent`` when the request has left whole and no error status refused it: it may be billed from then on.
    ``started`` is True once the answer has begun to arrive.
    """

    def __init__(self, expected: TokenUsage = _NONE) -> None:
        self.expected = expected
        self.sent = False
        self.started = False
        self._counted = _NONE  # by the provider; 0 is unknown
        self._uncounted = 0  # characters that came after the provider last counted

    def record_chunk(self, characters: int, counted: TokenUsage | None) -> None:
        """Add a piece of the answer. ``counted`` is the provider's count for the answer so far, if any."""
        self.started = True
        self._uncounted += characters
        if counted is None:
            return
        if counted.completion_tokens:
            self._uncounted = 0
        self._counted = TokenUsage(
            counted.prompt_tokens or self._counted.prompt_tokens, counted.completion_tokens or self._counted.completion_tokens
        )

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens of this try: the provider's counts, and an estimate from the length of the text for the rest.

        A lost answer counts as ``expected``, because the provider may have written all of it. A request that was refused, or
        never sent whole, counts as nothing.
        """
        if not self.started:
            return self.expected if self.sent else _NONE
        written = -(-self._uncounted // CHARACTERS_PER_TOKEN)
        return TokenUsage(self._counted.prompt_tokens or self.expected.prompt_tokens, self._counted.completion_tokens + written)

    @property
    def estimated(self) -> bool:
        """Return whether some of ``usage`` is an estimate."""
        counted = self.started and self._counted.prompt_tokens and not self._uncounted
        return not counted and self.usage != _NONE
