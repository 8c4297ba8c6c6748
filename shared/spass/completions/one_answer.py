"""Turn the events of several model calls into those of the one message that a client of chat completions gets."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from spass.core.events import Event, Failed, Token, ToolCallStarted, TurnFinished
from spass.core.messages import FinishReason

_TEXT_SEPARATOR: Final = "\n\n"


async def all_texts(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield the events of an answer that is the text of all model calls, separated by empty lines.

    Raises:
        SpassError: the turn failed.
    """
    last_step: int | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Token(text=text, step=step) if text:
                    yield event if last_step in (None, step) else Token(_TEXT_SEPARATOR + text, step)
                    last_step = step
                case _:
                    yield _for_clients(event)


async def last_text(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield the events of an answer that is the text of the last step.

    Only the end of the turn shows which step is the last. Its tokens are kept until then. An empty token says at once that the
    model answers, so that the response begins.

    Raises:
        SpassError: the turn failed.
    """
    kept: list[Token] = []
    async with aclosing(events):
        async for event in events:
            match event:
                case Token(step=step):
                    if kept and kept[0].step != step:
                        kept.clear()
                    kept.append(event)
                    yield Token("", step)
                case ToolCallStarted():
                    yield Token("", 1)
                case TurnFinished():
                    for token in kept:
                        yield token
                    yield _for_clients(event)
                case _:
                    yield _for_clients(event)


def _for_clients(event: Event) -> Event:
    """Return ``event`` without a finish reason that OpenAI does not know.

    Raises:
        SpassError: the event is the failure of the turn.
    """
    match event:
        case Failed(error=error):
            raise error
        case TurnFinished(finish_reason=FinishReason.MAX_TURNS | FinishReason.CANCELLED | FinishReason.DEADLINE):
            return replace(event, finish_reason=FinishReason.LENGTH)
        case _:
            return event
