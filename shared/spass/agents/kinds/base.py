"""The base classes of agent kinds: pure generators of effects, which the driver performs."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, TypeVar

from spass.core.effects import Answer, AssistantReply, CallTools, Infer, MaxTurns, Show, Steps, ToolOutcome, user
from spass.core.events import Event, collect
from spass.core.json import dump
from spass.core.messages import Json, Message, Role, ToolSpec

T = TypeVar("T")

MAX_TURNS: Final = 100
MAX_OUTPUT_TOKENS: Final = 2**31 - 1
"""Tokens. Providers accept a 32-bit integer, and the table cannot store larger sums."""


def parameter(default: T, description: str, *, ge: float | None = None, le: float | None = None) -> T:
    """Return the dataclass field of a kind's parameter, whose values are from ``ge`` to ``le``."""
    limits = {name: limit for name, limit in (("ge", ge), ("le", le)) if limit is not None}
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
    """The result of a tool call of a run. ``content`` is the text that the model received."""

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

    system_prompt: str = parameter("", "Instructions that precede every conversation.")
    temperature: float = parameter(0.7, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = parameter(1024, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)

    @abstractmethod
    def steps(self, input: str, context: AgentContext) -> Steps:
        """Return the generator of one turn. It does no I/O, reads no clock and makes no ids."""

    async def run(self, input: str, context: AgentContext, driver: Runner) -> AgentResult:
        """Run one turn and return its result.

        Raises:
            SpassError: the turn failed.
        """
        outcome = collect([event async for event in driver.run(self, input, context)])
        results = tuple(map(ToolResult.of, outcome.tool_calls))
        return AgentResult(outcome.content, results, outcome.turns, outcome.metadata)

    def opening(self, input: str, context: AgentContext, *data: str) -> tuple[Message, ...]:
        """Return the messages of the first model call: system prompt, conversation, memory results and other ``data``, input."""
        system = (Message(Role.SYSTEM, self.system_prompt),) if self.system_prompt.strip() else ()
        texts = [result if isinstance(result, str) else dump(result) for result in context.memory_results]
        return (*system, *context.conversation, *(user(text, data=True) for text in (*texts, *data)), user(input))


@dataclass(frozen=True, kw_only=True)
class ToolUsingAgent(BaseAgent):
    """A kind that calls tools."""

    accepts_tools: ClassVar[bool] = True

    max_turns: int = parameter(10, "Model calls of one turn, at most.", ge=1, le=MAX_TURNS)

    def tool_loop(self, messages: Sequence[Message], *, client_tools: Collection[str] = (), show: Show = None) -> Steps:
        """Call the model with the tools until a reply has no tool calls, and return that reply as the answer.

        A reply that calls one of ``client_tools`` is the answer too: the client answers those calls. Other calls of that reply
        are dropped, because their results would have to wait for the client's.
        """
        while True:
            reply: AssistantReply = yield Infer(tuple(messages), show=show)
            client_calls = tuple(call for call in reply.tool_calls if call.name in client_tools)
            if client_calls or not reply.tool_calls:
                return Answer(reply.content, calls=client_calls)
            try:
                outcomes: Sequence[ToolOutcome] = yield CallTools(reply.tool_calls)
            except MaxTurns:
                return Answer(reply.content)
            asked = Message(Role.ASSISTANT, reply.content, tuple(outcome.call for outcome in outcomes))
            messages = (*messages, asked, *(outcome.message for outcome in outcomes))
