"""The kind ``monitor_operative``: an operator for long tasks. Four axes decide how it shortens results, keeps findings, recalls
notes and divides tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from spass.agents.kinds.axes.compression import Compression, compress
from spass.agents.kinds.axes.extraction import Extraction, extract
from spass.agents.kinds.axes.retrieval import RetrievalStrategy, retrieve
from spass.agents.kinds.axes.side_calls import Effects, SideCalls
from spass.agents.kinds.base import MAX_TURNS, AgentContext, parameter
from spass.agents.kinds.operative import RememberingAgent
from spass.core.effects import Note, Steps, ToolOutcome, user
from spass.core.json import dump
from spass.core.messages import MAX_OUTPUT_TOKENS, Message, ToolSpec

Decomposition: TypeAlias = Literal["phased", "monolithic", "hierarchical"]

DECOMPOSITIONS: Final[Mapping[Decomposition, str]] = {
    "phased": """\
Work in phases. Before you begin, divide the task into phases and name them. Finish each phase, and check what it has found,
before you begin the next one.""",
    "hierarchical": """\
Divide the task into sub-tasks, and each sub-task that is still large into its own sub-tasks. Solve the smallest ones first, and
combine their results step by step until the whole task is solved.""",
    "monolithic": "",
}
"""The axis ``task_decomposition``: the part of the prompt that says how to divide a task."""

MONITOR_SYSTEM_PROMPT: Final = """\
You work on long tasks with tools, over several runs. Use your tools to find out what you do not know, check what you find, and
answer when the task is done. What earlier runs left behind is given to you as data: a state, and notes on what they found. You
may read a long result of a tool in a shortened form."""


@dataclass(frozen=True, kw_only=True)
class MonitorOperativeAgent(RememberingAgent):
    """Work on long tasks over several runs, with strategies for long results, findings, notes and the division of the task."""

    system_prompt: str = parameter(MONITOR_SYSTEM_PROMPT, "Instructions that replace those of the kind.")
    temperature: float = parameter(0.3, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = parameter(4096, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)
    max_turns: int = parameter(25, "Model calls of one turn, at most.", ge=1, le=MAX_TURNS)
    observation_compression: Compression = parameter(
        "summarize", "What the model reads of a result of more than 2,000 characters."
    )
    memory_extraction: Extraction = parameter("causality_graph", "What is kept of the results of tools, as notes.")
    retrieval_strategy: RetrievalStrategy = parameter(
        "hybrid_with_self_eval", "How notes of earlier runs are recalled at the start of a run."
    )
    task_decomposition: Decomposition = parameter("phased", "How the prompt asks to divide the task.")

    def steps(self, input: str, context: AgentContext) -> Steps:
        calls = SideCalls(input)
        notes = yield from retrieve(self.retrieval_strategy, calls)

        def observe(outcomes: Sequence[ToolOutcome]) -> Effects[Sequence[ToolOutcome]]:
            observed: list[ToolOutcome] = []
            for outcome in outcomes:
                observed += [(yield from self._observe(calls, outcome))]
            return observed

        agent = replace(self, system_prompt=self._prompt(context.specs))
        answer = yield from agent.remember(input, context, *_recalled_notes(notes), observe=observe)
        side_calls = {"side_calls": calls.failures} if calls.failures else {}
        return replace(answer, metadata={**answer.metadata, **side_calls})

    def _observe(self, calls: SideCalls, outcome: ToolOutcome) -> Effects[ToolOutcome]:
        """Keep notes of a result, and return it as the model reads it. A result that waits for a person stays as it is."""
        if outcome.waiting:
            return outcome
        seen = yield from compress(self.observation_compression, calls, outcome)
        yield from extract(self.memory_extraction, calls, outcome)
        return seen

    def _prompt(self, specs: Sequence[ToolSpec]) -> str:
        prompt = self.system_prompt if self.system_prompt.strip() else MONITOR_SYSTEM_PROMPT
        parts = (prompt, DECOMPOSITIONS[self.task_decomposition], _describe_tools(specs))
        return "\n\n".join(filter(None, parts))


def _describe_tools(specs: Sequence[ToolSpec]) -> str:
    """Return the name and the first sentence of each tool. The provider describes the parameters."""
    lines = [f"- {spec.name}: {spec.description.strip().partition(chr(10))[0]}" for spec in specs]
    return "\n".join(("Your tools:", *lines)) if lines else ""


def _recalled_notes(notes: Sequence[Note]) -> tuple[Message, ...]:
    lines = [dump({"key": note.key, "content": note.content, "created_at": note.created_at}) for note in notes]
    return (user("\n".join(lines), data=True, heading="## Notes of earlier runs"),) if lines else ()
