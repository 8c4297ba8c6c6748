"""The base classes of agent kinds: pure generators of effects, which the driver performs."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar

from spass.agents.kinds.source import GeneratorSource, Source
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallTools,
    CellResult,
    Effect,
    Infer,
    MaxTurns,
    RunCode,
    Steps,
    ToolOutcome,
    user,
)
from spass.core.events import Event, collect
from spass.core.json import dump
from spass.core.messages import MAX_OUTPUT_TOKENS, Json, Message, Role, ToolSpec

T = TypeVar("T")

MAX_TURNS: Final = 100

Need: TypeAlias = Literal["code", "openhands", "claude_code"]
"""A requirement of a kind: a sandbox for code, or the runner of a foreign agent."""


def parameter(default: T, description: str, *, ge: float | None = None, le: float | None = None, pattern: str | None = None) -> T:
    """Return the dataclass field of a kind's parameter, whose values are from ``ge`` to ``le``, or texts of the ``pattern``."""
    limits = {name: limit for name, limit in (("ge", ge), ("le", le), ("pattern", pattern)) if limit is not None}
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent knows besides its input.

    ``conversation`` are the messages before the input. ``tools`` are the names of its tools and ``specs`` describes them.
    ``memory_results`` are passages that were looked up: texts, or JSON.
    """

    conversation: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    memory_results: tuple[Json, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    specs: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call of a run. ``content`` is its whole text."""

    tool_name: str
    content: str
    success: bool
    duration_ms: int

    @classmethod
    def of(cls, outcome: ToolOutcome) -> "ToolResult":
        return cls(outcome.call.name, outcome.message.content, outcome.ok, outcome.duration_ms)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The result of a run. ``turns`` counts the agent's own model calls."""

    content: str
    tool_results: tuple[ToolResult, ...] = ()
    turns: int = 0
    metadata: Mapping[str, Json] = field(default_factory=dict)


class Runner(Protocol):
    """The driver, as a kind sees it."""

    def run(self, agent: "BaseAgent", input: str, context: AgentContext) -> AsyncGenerator[Event, None]:
        """Yield the events of one turn."""
        ...


@dataclass(frozen=True, kw_only=True)
class BaseAgent(ABC):
    """An agent kind. Its fields are its parameters, and the first line of its docstring is its description."""

    accepts_tools: ClassVar[bool] = False
    multi_turn: ClassVar[bool] = True
    needs: ClassVar[Need | None] = None
    """The requirement of the kind. None means that every gateway can run it."""

    remembers: ClassVar[bool] = False
    """True for a kind of operators: it recalls and keeps notes, and has a state from run to run."""

    system_prompt: str = parameter("", "Instructions that precede every conversation.")
    temperature: float = parameter(0.7, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = parameter(1024, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)

    @abstractmethod
    def steps(self, input: str, context: AgentContext) -> Steps:
        """Return the generator of one turn. It does no I/O, reads no clock and makes no ids."""

    def open(self, input: str, context: AgentContext, tenant_id: str) -> Source:  # noqa: ARG002 (a generator waits for nothing)
        """Return the source of the effects of one turn: by default, the generator of ``steps``. A source that waits for others
        is served by ``tenant_id`` in turn."""
        return GeneratorSource(type(self).__name__, lambda: self.steps(input, context))

    async def run(self, input: str, context: AgentContext, driver: Runner) -> AgentResult:
        """Run one turn and return its result. Raise SpassError if the turn failed."""
        outcome = collect([event async for event in driver.run(self, input, context)])
        results = tuple(map(ToolResult.of, outcome.tool_calls))
        return AgentResult(outcome.content, results, outcome.turns, outcome.metadata)

    def opening(self, input: str, context: AgentContext, *data: Message) -> tuple[Message, ...]:
        """Return the messages of the first model call: system prompt, conversation, memory results and other ``data``, input."""
        system = (Message(Role.SYSTEM, self.system_prompt),) if self.system_prompt.strip() else ()
        texts = [result if isinstance(result, str) else dump(result) for result in context.memory_results]
        results = [user(text, data=True) for text in texts]
        return (*system, *context.conversation, *results, *data, Message(Role.USER, input))


@dataclass(frozen=True, slots=True)
class Correction:
    """The reply is neither an answer nor a call. ``messages`` tell the model how to continue, and ``text`` is the whole of it."""

    messages: tuple[Message, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class RunCells:
    """The reply has code. Its cells, of which there is at least one, run one after the other until one gives the turn's answer.
    ``text`` are the words before the first one. ``left_out`` counts the blocks after them that do not run."""

    cells: tuple[RunCode, ...]
    text: str = ""
    left_out: int = 0


Step: TypeAlias = Answer | CallTools | RunCells | Correction
"""The next step, which the reply of a model selects."""


class CallFormat:
    """The form in which a model calls tools and reads their results. Here the provider parses the calls."""

    def opening(self, agent: BaseAgent, input: str, context: AgentContext) -> tuple[Message, ...]:
        """Return the messages of the first model call."""
        return agent.opening(input, context)

    def infer(self, messages: tuple[Message, ...]) -> Infer:
        """Return the next model call."""
        return Infer(messages)

    def read(self, reply: AssistantReply) -> Step:
        """Return what the reply asks for."""
        return CallTools(reply.tool_calls) if reply.tool_calls else Answer(reply.content)

    def record(self, reply: AssistantReply, step: CallTools, outcomes: Sequence[ToolOutcome]) -> tuple[Message, ...]:  # noqa: ARG002
        """Return the messages that tell the model what ``step`` called, and the results."""
        asked = Message(Role.ASSISTANT, reply.content, tuple(outcome.call for outcome in outcomes))
        return (asked, *(outcome.message for outcome in outcomes))

    def record_cells(self, step: RunCells, results: Sequence[CellResult]) -> tuple[Message, ...]:
        """Return the messages that tell the model which cells ran, and their results."""
        from spass.agents.kinds.code_blocks import describe_result, write_cell

        texts = [step.text, *[""] * (len(results) - 1)]
        ran = zip(texts, step.cells, results, strict=False)  # the cells after an answer do not run
        messages = [
            message
            for words, effect, result in ran
            for message in (Message(Role.ASSISTANT, write_cell(words, effect.cell.code)), describe_result(result))
        ]
        if step.left_out:
            messages.append(user(f"{step.left_out} more blocks of your reply did not run. Write fewer in one reply."))
        return tuple(messages)

    def answer_at_limit(self, texts: Sequence[str]) -> Answer:
        """Return the answer of a turn that has made all its model calls. ``texts`` are those of the replies before, and the
        outputs of their cells, in order."""
        return Answer(next(filter(None, reversed(texts)), ""))


NATIVE_CALLS: Final = CallFormat()


Observe: TypeAlias = Callable[[Sequence[ToolOutcome]], Generator[Effect, Any, Sequence[ToolOutcome]]]
"""Return the outcomes of tool calls as the model reads them. The effects are performed before the next model call."""


def observe_as_they_are(outcomes: Sequence[ToolOutcome]) -> Generator[Effect, Any, Sequence[ToolOutcome]]:
    """Return the outcomes without a change."""
    yield from ()
    return outcomes


@dataclass(frozen=True, kw_only=True)
class ToolUsingAgent(BaseAgent):
    """A kind that calls tools."""

    accepts_tools: ClassVar[bool] = True

    max_turns: int = parameter(10, "Model calls of one turn, at most.", ge=1, le=MAX_TURNS)

    def tool_loop(
        self, messages: Sequence[Message], calls: CallFormat = NATIVE_CALLS, observe: Observe = observe_as_they_are
    ) -> Steps:
        """Call the model, and the tools and the code of its replies, until there is an answer, and return it. ``observe`` decides
        what the model reads of the results of tool calls."""
        texts: list[str] = []
        try:
            while True:
                reply: AssistantReply = yield calls.infer(tuple(messages))
                step = calls.read(reply)
                if isinstance(step, Answer):
                    return step
                texts.append(reply.content if step.text is None else step.text)
                if isinstance(step, Correction):
                    messages = (*messages, *step.messages)
                elif isinstance(step, RunCells):
                    results = yield from run_cells(step.cells)
                    if (final := results[-1].final) is not None:
                        return Answer(final)
                    texts += [result.output for result in results]
                    messages = (*messages, *calls.record_cells(step, results))
                else:
                    outcomes: Sequence[ToolOutcome] = yield step
                    observed = yield from observe(outcomes)
                    messages = (*messages, *calls.record(reply, step, observed))
        except MaxTurns:
            return calls.answer_at_limit(texts)


def run_cells(cells: Sequence[RunCode]) -> Generator[Effect, Any, Sequence[CellResult]]:
    """Run cells one after the other, until one of them gives the answer of the turn. Return the results."""
    results: list[CellResult] = []
    for cell in cells:
        result: CellResult = yield cell
        results.append(result)
        if result.final is not None:
            break
    return results


@dataclass(frozen=True, kw_only=True)
class ToolLoopAgent(ToolUsingAgent):
    """A kind whose steps are the tool loop."""

    @abstractmethod
    def call_format(self, context: AgentContext) -> CallFormat:
        """Return the form in which the model calls tools."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        calls = self.call_format(context)
        return self.tool_loop(calls.opening(self, input, context), calls)
