"""The end of an answer in OpenAI's format has a finish reason that OpenAI's clients know, whatever ended the turn."""

from collections.abc import AsyncGenerator, Callable

import pytest

from spass.completions.answer import AnswerBuilder, all_texts, last_text
from spass.core.events import Event, Token, TurnFinished, TurnStarted
from spass.core.messages import FinishReason

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("as_one_answer", [all_texts, last_text])
@pytest.mark.parametrize("reason", FinishReason)
async def test_a_reason_that_openai_does_not_know_is_sent_as_length(
    reason: FinishReason, as_one_answer: Callable[[AsyncGenerator[Event, None]], AsyncGenerator[Event, None]]
) -> None:
    async def turn() -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        yield Token("So far.", 1)
        yield TurnFinished(reason)

    answer = AnswerBuilder("agent/tester")
    async for event in as_one_answer(turn()):
        answer.add(event)
    (choice,) = answer.build().choices
    known = ("stop", "length", "tool_calls", "content_filter")
    assert choice.finish_reason == (reason.value if reason.value in known else "length")
    assert choice.message.content == "So far."
