"""A call made aside takes half of the time that is left, and none of its failures ends the turn."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest

from spass.agents.inference import call_aside
from spass.core.effects import AssistantReply, CallError, Infer, user
from spass.core.errors import UpstreamError
from spass.core.messages import FinishReason
from spass.core.time import Deadline
from spass.models.types import ChatDelta
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

EFFECT = Infer((user("Hi"),), "none", aside=True)


@dataclass
class OneReply:
    """A model whose reply begins with ``text``. Then it waits for ``seconds`` and ends, or raises ``error``."""

    text: str = "Hello"
    seconds: float = 0.0
    error: BaseException | None = None
    is_closed: bool = False

    async def perform(self, _: Infer) -> AsyncGenerator[ChatDelta, None]:
        try:
            yield ChatDelta(self.text)
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            yield ChatDelta("", finish_reason=FinishReason.STOP)
        finally:
            self.is_closed = True

    def begins_thinking(self, _: Infer) -> bool:
        return False


async def test_the_whole_reply_comes_without_think_text() -> None:
    assert await call_aside(OneReply("<think>Hm.</think>Hello"), EFFECT, Deadline.after(60)) == AssistantReply("Hello")


@pytest.mark.parametrize(("seconds", "answers"), [(29, True), (31, False), (10_000, False)])
async def test_it_may_take_half_of_the_time_that_is_left(seconds: float, answers: bool) -> None:
    model, begun = OneReply(seconds=seconds), asyncio.get_running_loop().time()
    reply = await call_aside(model, EFFECT, Deadline.after(60))
    assert (reply.content, reply.error is None) == ("Hello" if answers else "", answers)
    assert reply.error is None or reply.error.code == "upstream_timeout"
    assert asyncio.get_running_loop().time() - begun == pytest.approx(min(seconds, 30), abs=1)
    assert model.is_closed


async def test_after_the_deadline_it_fails_at_once() -> None:
    reply = await call_aside(OneReply(seconds=1), EFFECT, Deadline.after(0))
    assert reply.error is not None
    assert reply.error.code == "upstream_timeout"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UpstreamError("Down."), CallError("upstream_error", "Down.")),
        (ZeroDivisionError("secret"), CallError("internal_error", "Something went wrong on our side.")),
    ],
)
async def test_an_error_or_an_exception_is_the_error_of_the_reply(error: Exception, expected: CallError) -> None:
    assert await call_aside(OneReply(error=error), EFFECT, Deadline.after(60)) == AssistantReply("", error=expected)


async def test_an_exception_is_logged_and_an_error_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    await call_aside(OneReply(error=UpstreamError("Down.")), EFFECT, Deadline.after(60))
    assert capsys.readouterr().out == ""
    await call_aside(OneReply(error=ZeroDivisionError()), EFFECT, Deadline.after(60))
    assert "ZeroDivisionError" in capsys.readouterr().out


async def test_a_cancellation_of_the_turn_is_not_swallowed() -> None:
    task = asyncio.create_task(call_aside(OneReply(seconds=60), EFFECT, Deadline.after(600)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
