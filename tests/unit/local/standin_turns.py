"""A turn of an agent kind whose model is the stand-in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from local.standin.wire import complete
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.calls.defence import sanitize_request
from spass.core.effects import Answer, AssistantReply, Infer
from spass.models.providers.openai_compatible import chat_body
from spass.models.types import ChatRequest


class Turn(NamedTuple):
    """The answer of a turn, and what the stand-in wrote in it."""

    answer: str
    replies: list[str]


def run_turn(agent: BaseAgent, question: str, context: AgentContext, perform: Callable[[Any], object]) -> Turn:
    """Run a turn, in which ``perform`` returns the results of all effects besides model calls."""
    steps, replies = agent.steps(question, context), list[str]()
    result: object = None
    with pytest.raises(StopIteration) as end:
        while True:
            effect = steps.send(result)
            if isinstance(effect, Infer):
                completion = complete(chat_body(sanitize_request(ChatRequest("m", effect.messages)).request, "max_tokens"))
                assert (completion.tool_calls, completion.finish_reason) == ([], "stop")
                replies.append(completion.content or "")
                result = AssistantReply(replies[-1])
            else:
                result = perform(effect)
    answer: Answer = end.value.value
    return Turn(answer.content, replies)
