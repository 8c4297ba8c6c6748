"""Model calls that are not steps of an agent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from spass.agents.reply_reader import ReplyReader
from spass.core.effects import AssistantReply, CallError, Infer
from spass.core.errors import SpassError, UpstreamTimeout, internal_error
from spass.core.time import Deadline
from spass.models.types import ChatDelta
from spass.redaction.log import failure_line, write_line


class Inference(Protocol):
    """Perform ``Infer``."""

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]: ...

    def begins_thinking(self, effect: Infer) -> bool: ...


async def infer_aside(infer: Inference, effect: Infer, deadline: Deadline) -> AssistantReply:
    """Perform ``effect`` and return the whole reply without think text. If the call fails, the reply has its ``error``.

    The call may take half of the time until ``deadline``, so that the turn can go on without it.
    """
    try:
        async with asyncio.timeout(deadline.remaining() / 2):
            return await read_reply(infer, effect)
    except TimeoutError:
        return _failed(UpstreamTimeout("The model did not answer in half of the time that was left."))
    except SpassError as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001 (whatever such a call does, the turn goes on)
        write_line(failure_line(error, ""))
        return _failed(internal_error(error))


def _failed(error: SpassError) -> AssistantReply:
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
