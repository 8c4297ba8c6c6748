"""Leak scrubbing of what a model says, whole or in pieces."""

from collections.abc import Callable, Collection

from spass.llm.types import ChatDelta
from spass.tenancy.config import GatewayConfig


class Leaks:
    """What no answer may hold. One for the process; ``keys`` gives the provider keys in use."""

    def __init__(self, config: GatewayConfig, keys: Callable[[], Collection[str]]) -> None:
        self._config = config
        self._keys = keys

    def scrubber(self) -> "AnswerScrubber":
        """For one answer."""
        return AnswerScrubber()


class AnswerScrubber:
    """Takes the pieces of one answer and gives them on without secrets, also where one is cut in two."""

    def passed(self, delta: ChatDelta) -> ChatDelta:
        """What may be passed on now; a piece without text where that is nothing."""
        return delta

    def rest(self) -> ChatDelta:
        """What was held back, when the answer has ended."""
        return ChatDelta()
