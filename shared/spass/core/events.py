"""The events of a turn. A JSON reply is their collection; each server-sent format renders them."""

from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from spass.core.cost import NO_COST, Cost
from spass.core.effects import ToolOutcome
from spass.core.errors import SpassError
from spass.core.messages import NO_TOKENS, FinishReason, Json, Message, TokenUsage, ToolCall, ToolCallDelta


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The first event of a turn."""


@dataclass(frozen=True, slots=True)
class InferenceStarted:
    """One of the agent's own model calls begins. ``step`` is greater than in every earlier event."""

    step: int


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text that is shown. The pieces of the last ``step``, joined, are the answer."""

    text: str
    step: int


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A piece of a refusal, for a client whose format separates refusals from text."""

    text: str


@dataclass(frozen=True, slots=True)
class InferenceFinished:
    """A model call of the agent ended. ``message`` (role assistant) is what is recorded of it. ``finish_reason`` is None if the
    call or the turn failed."""

    message: Message
    finish_reason: FinishReason | None
    usage: TokenUsage = NO_TOKENS


@dataclass(frozen=True, slots=True)
class MessageWritten:
    """The agent wrote ``message`` (role assistant) without a model call of its own."""

    message: Message


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A tool that is running reports its progress."""

    call_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class ResultRecorded:
    """The history keeps ``content`` of the result of the call ``call_id``. The reply has the whole result."""

    call_id: str
    content: str


@dataclass(frozen=True, slots=True)
class Status:
    """A message about progress for the client."""

    detail: str


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The last event of a turn that succeeded. ``usage`` and ``cost`` are of the whole turn, side calls included.
    ``model`` is the one that answered, if it is not the agent's."""

    finish_reason: FinishReason
    usage: TokenUsage = NO_TOKENS
    cost: Cost = NO_COST
    metadata: Mapping[str, Json] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a turn that failed."""

    error: SpassError


ToolEvent: TypeAlias = ToolCallStarted | ToolProgress | ToolCallFinished
"""An event of a tool call that runs."""


@dataclass(frozen=True, slots=True)
class Nested:
    """An event of work within the call ``parent_id``, done by ``agent``. It is rendered, but not part of the turn's record."""

    agent: str
    parent_id: str
    event: ToolEvent


CallEvent: TypeAlias = ToolEvent | Nested
"""An event of a tool call that runs, or of work within it."""

Event: TypeAlias = (
    TurnStarted
    | InferenceStarted
    | Token
    | RefusalDelta
    | ToolCallDelta
    | InferenceFinished
    | MessageWritten
    | CallEvent
    | ResultRecorded
    | Status
    | TurnFinished
    | Failed
)


@dataclass(slots=True)
class Outcome:
    """The collected events of a turn.

    ``messages`` are the messages that the turn adds after the user's: assistant and tool messages in order, the answer last. Tool
    results and ``tool_calls`` are in the order of the calls, in which they need not arrive. ``turns`` counts model calls.
    """

    messages: list[Message] = field(default_factory=list)
    tool_calls: list[ToolOutcome] = field(default_factory=list)
    usage: TokenUsage = NO_TOKENS
    cost: Cost = NO_COST
    turns: int = 0
    finish_reason: FinishReason = FinishReason.STOP
    metadata: Mapping[str, Json] = field(default_factory=dict)
    model: str | None = None
    # Of the last assistant message: the place of each call, and the places of those that have a result, in ascending order.
    _places: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _places_of_results: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def content(self) -> str:
        return self.messages[-1].content if self.messages else ""

    def add(self, event: Event) -> int | None:
        """Add ``event``. Return the index of the message that it adds to ``messages``, or None."""
        match event:
            case InferenceStarted():
                self.turns += 1
            case InferenceFinished(message=message) | MessageWritten(message=message):
                return self._add_message(message)
            case ToolCallFinished(outcome=outcome):
                return self._add_result(outcome)
            case ResultRecorded():
                self._record_result(event)
            case TurnFinished():
                self.usage, self.cost = event.usage, event.cost
                self.finish_reason, self.metadata, self.model = event.finish_reason, event.metadata, event.model
            case TurnStarted() | Token() | RefusalDelta() | ToolCallDelta():
                pass
            case ToolCallStarted() | ToolProgress() | Nested() | Status() | Failed():
                pass
            case _:
                assert_never(event)
        return None

    def _add_message(self, message: Message) -> int:
        self.messages.append(message)
        self._places = {call.id: place for place, call in enumerate(message.tool_calls)}
        self._places_of_results = []
        return len(self.messages) - 1

    def _add_result(self, outcome: ToolOutcome) -> int:
        """Insert a tool result behind the results of the calls that precede its call."""
        place = self._places[outcome.call.id]
        earlier = bisect(self._places_of_results, place)
        later = len(self._places_of_results) - earlier
        self._places_of_results.insert(earlier, place)
        self.tool_calls.insert(len(self.tool_calls) - later, outcome)
        index = len(self.messages) - later
        self.messages.insert(index, outcome.message)
        return index

    def _record_result(self, recorded: ResultRecorded) -> None:
        """Replace the content of a tool message. It follows the last assistant message."""
        for index in range(len(self.messages) - len(self._places_of_results), len(self.messages)):
            if self.messages[index].tool_call_id == recorded.call_id:
                self.messages[index] = replace(self.messages[index], content=recorded.content)


def collect(events: Iterable[Event]) -> Outcome:
    """Return the outcome of a turn that has ended, or raise the error of one that failed."""
    outcome = Outcome()
    for event in events:
        if isinstance(event, Failed):
            raise event.error
        outcome.add(event)
    return outcome
