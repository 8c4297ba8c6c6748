"""The tool loop runs the cells of a reply in order, and the model reads what each of them did."""

from dataclasses import dataclass

import pytest

from spass.agents.kinds import AgentContext, ToolUsingAgent
from spass.agents.kinds.base import CallFormat, RunCells, Step
from spass.agents.kinds.code_blocks import describe_result
from spass.core.effects import Answer, AssistantReply, Cell, CellResult, Infer, MaxTurns, RunCode, Steps, user
from spass.core.messages import Message, Role


class OneCellPerLine(CallFormat):
    """Read each line of a reply as a cell, unless it says that it has none."""

    def read(self, reply: AssistantReply) -> Step:
        if reply.content.startswith("no code"):
            return Answer(reply.content)
        return RunCells(tuple(RunCode(Cell(line)) for line in reply.content.splitlines()), "So.")


@dataclass(frozen=True, kw_only=True)
class Coder(ToolUsingAgent):
    """Write code."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.tool_loop(self.opening(input, context), OneCellPerLine())


def started(reply: str) -> Steps:
    """Return the run of a coder whose model has replied."""
    steps = Coder().steps("?", AgentContext())
    assert next(steps) == Infer((user("?"),))
    assert steps.send(AssistantReply(reply)) == RunCode(Cell(reply.splitlines()[0]))
    return steps


def test_the_cells_of_a_reply_run_in_order_and_the_model_reads_their_outputs() -> None:
    steps = started("a\nb")
    assert steps.send(CellResult("1\n")) == RunCode(Cell("b"))
    assert steps.send(CellResult("", "NameError: b")) == Infer(
        (
            user("?"),
            Message(Role.ASSISTANT, "So.\n\n```python\na\n```"),
            describe_result(CellResult("1\n")),
            Message(Role.ASSISTANT, "```python\nb\n```"),
            describe_result(CellResult("", "NameError: b")),
        )
    )


def test_a_cell_that_gives_the_answer_ends_the_turn_at_once() -> None:
    steps = started("a\nb")
    with pytest.raises(StopIteration) as end:
        steps.send(CellResult("1\n", final="42"))
    assert end.value.value == Answer("42")


def test_at_max_turns_the_answer_is_the_last_output_or_else_the_words_before_it() -> None:
    for output, answer in (("7\n", "7\n"), ("", "So.")):
        steps = started("a")
        steps.send(CellResult(output))
        with pytest.raises(StopIteration) as end:
            steps.throw(MaxTurns())
        assert end.value.value == Answer(answer)
