"""The stand-in writes Python for the kinds that run code, and its code gives the right answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from local.standin.wire import complete
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.native_openhands import NativeOpenHandsAgent
from spass.agents.kinds.rlm import RLMAgent
from spass.calls.defence import sanitize_request
from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Answer, AssistantReply, CellResult, Infer, RunCode
from spass.core.messages import Json, Message, Role
from spass.llm.providers.openai_wire import chat_body
from spass.llm.types import ChatRequest
from tests.simulated.interpreter import InProcessInterpreter

CSV = "district,parks,area\nMitte,12,70.5\nPankow,40,12.25\nSpandau,,17.25\n"
LINES = "Berlin is large.\nHamburg has a harbour.\nThe zoo of Berlin is old."


@dataclass
class Turn:
    """A turn of a kind against the stand-in. ``replies`` are what the stand-in wrote, ``cells`` what ran."""

    agent: BaseAgent
    memory: Sequence[Json] = ()
    conversation: tuple[Message, ...] = ()
    replies: list[str] = field(default_factory=list)
    interpreter: InProcessInterpreter = field(default_factory=InProcessInterpreter)

    def ask(self, question: str) -> str:
        steps = self.agent.steps(question, AgentContext(self.conversation, memory_results=tuple(self.memory)))
        result: object = None
        with pytest.raises(StopIteration) as end:
            while True:
                effect = steps.send(result)
                result = self._infer(effect) if isinstance(effect, Infer) else self._run(effect)
        answer: Answer = end.value.value
        return answer.content

    def _infer(self, effect: Infer) -> AssistantReply:
        completion = complete(chat_body(sanitize_request(ChatRequest("m", effect.messages)).request, "max_tokens"))
        self.replies.append(completion.content or "")
        return AssistantReply(self.replies[-1])

    def _run(self, effect: Any) -> CellResult:
        assert isinstance(effect, RunCode)
        return asyncio.run(self.interpreter.run(effect.cell, (), _refuse))


async def _refuse(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
    raise AssertionError(requests)


QUESTIONS = pytest.mark.parametrize(
    ("question", "memory", "answer"),
    [
        ("What is the sum of the column area?", [CSV], "The sum of area is 100.00."),
        ("What is the sum of area?", ["A note:", CSV], "The sum of area is 100.00."),
        ("How many lines mention Berlin?", [LINES], "2 lines mention Berlin."),
        ("How many lines mention {'value'}?", LINES.splitlines(), "0 lines mention {'value'}."),
    ],
)


@QUESTIONS
def test_rlm_answers_from_data_that_no_prompt_contains(question: str, memory: Sequence[str], answer: str) -> None:
    turn = Turn(RLMAgent(), memory)
    assert turn.ask(question) == answer
    assert len(turn.interpreter.cells) == len(turn.replies) == 1


@QUESTIONS
def test_native_openhands_answers_from_the_output_of_its_code(question: str, memory: Sequence[str], answer: str) -> None:
    turn = Turn(NativeOpenHandsAgent(), memory)
    assert turn.ask(question) == answer
    assert (len(turn.interpreter.cells), len(turn.replies)) == (1, 2)


def test_native_openhands_without_data_runs_no_code() -> None:
    turn = Turn(NativeOpenHandsAgent())
    assert turn.ask("What is the sum of parks?").startswith("I am the offline stand-in model")
    assert turn.interpreter.cells == []


@pytest.mark.parametrize("agent", [RLMAgent(), NativeOpenHandsAgent()], ids=["rlm", "native_openhands"])
def test_code_that_fails_is_reported(agent: BaseAgent) -> None:
    turn = Turn(agent, [CSV])
    assert "StopIteration" in turn.ask("What is the sum of the column price?")
    assert len(turn.replies) == 2


def test_a_question_that_needs_no_code_is_answered_as_usual() -> None:
    turn = Turn(RLMAgent(), [CSV], (Message(Role.USER, "My favourite sport is tennis."), Message(Role.ASSISTANT, "Noted.")))
    assert turn.ask("What is my favourite sport?") == "My favourite sport is tennis."
    assert turn.interpreter.cells == []
