"""Counts what one try at a backend takes, whether its answer arrives or is lost."""

from typing import Final

from spass.core.messages import TokenUsage

CHARACTERS_PER_TOKEN: Final = 4

_NONE: Final = TokenUsage()


class Attempt:
    """One try at a backend, which is ``expected`` to take so many tokens.

    ``sent`` is set by the provider: the request left whole, and no error status refused it. From then on it may be billed.
    ``started``: an answer, or the beginning of one, came.
    """

    def __init__(self, expected: TokenUsage = _NONE) -> None:
        self.expected = expected
        self.sent = False
        self.started = False
        self._counted = _NONE  # by the provider; 0 says nothing
        self._uncounted = 0  # characters that came after the provider last counted

    def record_chunk(self, characters: int, counted: TokenUsage | None) -> None:
        """Note a piece of the answer, and what the provider ``counted`` with it, if it did: all that the answer took by then."""
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
        """Return the tokens of this try: the provider's counts, and an estimate by the length of the text for the rest.

        An answer that was lost counts as expected, because the provider may have written all of it. A request that was refused or
        never sent took nothing.
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
