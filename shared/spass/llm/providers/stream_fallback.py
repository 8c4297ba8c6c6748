"""Request a whole answer if the provider cannot stream it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from spass.llm.errors import BackendCannotStream
from spass.llm.types import CallContext, ChatDelta


async def stream_or_whole(
    stream: AsyncGenerator[ChatDelta, None], whole: Callable[[], AsyncGenerator[ChatDelta, None]], context: CallContext
) -> AsyncGenerator[ChatDelta, None]:
    """Yield the deltas of ``stream``, or those of ``whole()`` if the provider says that it cannot stream this answer.

    Agents always request a stream, but some models cannot stream, or cannot stream if the request has tools.
    """
    try:
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                yield delta
    except BackendCannotStream:
        if context.attempt.started:
            raise
    else:
        return
    async with aclosing(whole()) as deltas:
        async for delta in deltas:
            yield delta
