"""What an agent kind may do. A kind does no I/O, reads no clock and makes no ids: it acts through its context alone."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeAlias

from spass.core.events import InferenceFinished, Token, ToolCallFinished, Usage
from spass.core.messages import Message, ToolCall

ModelEvent: TypeAlias = Token | InferenceFinished | Usage


class KindContext(Protocol):
    """The world of one turn."""

    @property
    def max_turns(self) -> int:
        """How many model calls the turn may make; at least 1."""
        ...

    def model(self, conversation: Sequence[Message], *, may_call_tools: bool) -> AsyncGenerator[ModelEvent, None]:
        """Asks the agent's model to go on with ``conversation``. Yields its text as it comes, then ``InferenceFinished``, then
        ``Usage``. With ``may_call_tools`` false the model is told to answer in words.

        Raises:
            SpassError: the call failed for good.
        """
        ...

    async def tools(self, calls: Sequence[ToolCall]) -> Sequence[ToolCallFinished]:
        """Runs the tools that one answer of the model asks for; what they come to, in the order of ``calls``. A bad call, a
        failing tool and a call too many are results too: the model reads the error. All have ended before a failure is raised.

        Raises:
            SpassError: the turn cannot go on.
        """
        ...
