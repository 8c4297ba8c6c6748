"""The interface of an agent kind to the rest of the system. A kind itself does no I/O, reads no clock and creates no ids."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeAlias

from spass.core.effects import ToolOutcome
from spass.core.events import InferenceFinished, Token
from spass.core.messages import Message, ToolCall

ModelEvent: TypeAlias = Token | InferenceFinished


class KindContext(Protocol):
    """The calls that a kind may make during one turn."""

    @property
    def max_turns(self) -> int:
        """Return the maximum number of model calls of the turn; at least 1."""
        ...

    def model(self, conversation: Sequence[Message], step: int, *, may_call_tools: bool) -> AsyncGenerator[ModelEvent, None]:
        """Call the agent's model with ``conversation``. Yield its text as it arrives, then ``InferenceFinished``.
        If ``may_call_tools`` is false, the request tells the model to answer without tools.

        Raises:
            SpassError: the call failed after all retries.
        """
        ...

    async def tools(self, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        """Execute the tool calls of one reply and return their results in the order of ``calls``. An invalid call, a failed tool
        and a call above the limit also have results: errors that the model reads. All calls have ended when this raises.

        Raises:
            SpassError: the turn cannot continue.
        """
        ...
