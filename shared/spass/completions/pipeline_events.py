"""Turn one call of the pipeline into the events of an answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spass.core.cost import CostTally
from spass.core.events import Event, RefusalDelta, Token, TurnFinished
from spass.models.types import ChatDelta, ReplyBuilder


async def pipeline_events(deltas: AsyncGenerator[ChatDelta, None], tally: CostTally) -> AsyncGenerator[Event, None]:
    """Yield the events of the answer that arrives in ``deltas``. The client answers all tool calls. ``tally`` is the request's.

    Raises:
        SpassError: the same as ``Calls.chat``.
    """
    builder = ReplyBuilder(bool)
    async with aclosing(deltas):
        async for delta in deltas:
            pieces = builder.add(delta)
            if delta.content:
                yield Token(delta.content, 1)
            if delta.refusal:
                yield RefusalDelta(delta.refusal)
            for piece in pieces:
                yield piece
            if delta.finish_reason is not None and delta.usage is not None:
                yield TurnFinished(delta.finish_reason, delta.usage, tally.total)
