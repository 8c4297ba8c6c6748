"""The stand-in writes Python for the kinds that run code, and its code gives the right answers."""

import asyncio
from collections.abc import Sequence

import pytest

from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.native_openhands import NativeOpenHandsAgent
from spass.agents.kinds.rlm import RLMAgent
from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import CellResult, RunCode
from spass.core.messages import Message, Role
from tests.simulated.interpreter import InProcessInterpreter
from tests.unit.local.standin_turns import Turn, run_turn

CSV = "district,parks,area\nMitte,12,70.5\nPankow,40,12.25\nSpandau,,17.25\n"
LINES = "Berlin is large.\nHamburg has a harbour.\nThe zoo of Berlin is old."


def ask(agent: BaseAgent, question: str, memory: Sequence[str] = (), said: tuple[Message, ...] = ()) -> tuple[Turn, int]:
    """Return a turn of a kind, and the number of cells that ran in it."""
    interpreter = InProcessInterpreter()

    def run(effect: RunCode) -> CellResult:
        return asyncio.run(interpreter.run(effect.cell, (), _refuse))

    return run_turn(agent, question, AgentContext(said, memory_results=tuple(memory)), run), len(interpreter.cells)


async def _refuse(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
    raise AssertionError(requests)


@pytest.mark.parametrize(("agent", "replies"), [(RLMAgent(), 1), (NativeOpenHandsAgent(), 2)], ids=["rlm", "native_openhands"])
@pytest.mark.parametrize(
    ("question", "memory", "answer"),
    [
        ("What is the sum of the column area?", [CSV], "The sum of area is 100.00."),
        ("What is the sum of area?", ["A note:", CSV], "The sum of area is 100.00."),
        ("How many lines mention Berlin?", [LINES], "2 lines mention Berlin."),
        ("How many lines mention {'value'}?", LINES.splitlines(), "0 lines mention {'value'}."),
    ],
)
def test_a_kind_that_runs_code_answers_from_its_data(
    question: str, memory: Sequence[str], answer: str, agent: BaseAgent, replies: int
) -> None:
    turn, cells = ask(agent, question, memory)
    assert (turn.answer, len(turn.replies), cells) == (answer, replies, 1)


def test_native_openhands_without_data_runs_no_code() -> None:
    turn, cells = ask(NativeOpenHandsAgent(), "What is the sum of parks?")
    assert (turn.answer.startswith("I am the offline stand-in model"), cells) == (True, 0)


@pytest.mark.parametrize("agent", [RLMAgent(), NativeOpenHandsAgent()], ids=["rlm", "native_openhands"])
def test_code_that_fails_is_reported(agent: BaseAgent) -> None:
    turn, _ = ask(agent, "What is the sum of the column price?", [CSV])
    assert "StopIteration" in turn.answer
    assert len(turn.replies) == 2


def test_a_question_that_needs_no_code_is_answered_as_usual() -> None:
    said = (Message(Role.USER, "My favourite sport is tennis."), Message(Role.ASSISTANT, "Noted."))
    turn, cells = ask(RLMAgent(), "What is my favourite sport?", [CSV], said)
    assert (turn.answer, cells) == ("My favourite sport is tennis.", 0)
