"""Model calls that are not steps of an agent."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from spass.agents.reply_reader import ReplyReader
from spass.core.effects import AssistantReply, CallError, Infer
from spass.core.errors import SpassError
from spass.llm.types import ChatDelta


class Inference(Protocol):
    """Perform ``Infer``."""

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]: ...

    def begins_thinking(self, effect: Infer) -> bool: ...


async def infer_aside(infer: Inference, effect: Infer) -> AssistantReply:
    """Perform ``effect`` and return the whole reply without think text. If the call fails, the reply has its ``error``."""
    try:
        return await read_reply(infer, effect)
    except SpassError as error:
        return AssistantReply("", error=CallError(error.code, error.message))


async def read_reply(infer: Inference, effect: Infer) -> AssistantReply:
    """Perform ``effect`` and return the whole reply without think text.

    Raises:
        SpassError: the call failed.
    """
    reader = ReplyReader(None, begins_thinking=infer.begins_thinking(effect))
    async with aclosing(infer.perform(effect)) as deltas:
        async for delta in deltas:
            reader.add(delta)
    reader.end()
    return reader.reply
