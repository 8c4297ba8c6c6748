"""Drive the steps of a kind by hand: no event loop, no server, no model."""

from collections.abc import Sequence

import pytest

from spass.core.effects import Answer, AssistantReply, CellResult, Effect, Infer, Steps
from spass.core.messages import FinishReason, Message


def reply(steps: Steps, text: str, reason: FinishReason = FinishReason.STOP) -> Effect:
    """Return the effect that follows a reply of the model."""
    effect: Effect = steps.send(AssistantReply(text, finish_reason=reason))
    return effect


def answer(steps: Steps, sent: AssistantReply | CellResult | str, reason: FinishReason = FinishReason.STOP) -> Answer:
    """Return the answer with which the steps end after a reply or the result of a cell."""
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply(sent, finish_reason=reason) if isinstance(sent, str) else sent)
    assert isinstance(end.value.value, Answer)
    return end.value.value


def messages_of(effect: object) -> Sequence[Message]:
    """Return the messages of a call of the model."""
    assert isinstance(effect, Infer)
    return effect.messages
