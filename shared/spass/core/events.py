"""The events of a turn. A JSON reply is their collection; each server-sent format renders them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from spass.core.errors import SpassError
from spass.core.messages import FinishReason, Json, Message, TokenUsage, ToolCall


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The first event of a turn."""


@dataclass(frozen=True, slots=True)
class InferenceStarted:
    """A model call begins; ``number`` counts them from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Token:
    """Text of the model: a delta when streaming, else the whole answer."""

    text: str


@dataclass(frozen=True, slots=True)
class InferenceFinished:
    """A model call ended with ``message`` (role assistant)."""

    message: Message
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool answered. ``arguments`` and ``result`` are parsed JSON; a failed call's result is ``{"error": …}``."""

    call: ToolCall
    arguments: Json
    result: Json
    message: Message
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the model call that just ended."""

    tokens: TokenUsage


@dataclass(frozen=True, slots=True)
class Status:
    """A message about progress for the client."""

    detail: str


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The last event of a turn that succeeded."""

    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a turn that failed."""

    error: SpassError


Event: TypeAlias = (
    TurnStarted
    | InferenceStarted
    | Token
    | InferenceFinished
    | ToolCallStarted
    | ToolCallFinished
    | Usage
    | Status
    | TurnFinished
    | Failed
)


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """One executed tool call, as a reply lists it."""

    name: str
    arguments: Json
    result: Json
    duration_ms: int


@dataclass(slots=True)
class Outcome:
    """The collected events of a turn.

    ``messages`` are the messages that the turn adds after the user's: assistant and tool messages in order, the answer last.
    ``turns`` counts model calls.
    """

    messages: list[Message] = field(default_factory=list)
    tool_calls: list[ToolRecord] = field(default_factory=list)
    usage: TokenUsage = field(default_factory=TokenUsage)
    turns: int = 0
    finish_reason: FinishReason = FinishReason.STOP

    @property
    def content(self) -> str:
        """Return the text of the answer."""
        return self.messages[-1].content if self.messages else ""

    def add(self, event: Event) -> None:
        match event:
            case InferenceStarted():
                self.turns += 1
            case InferenceFinished(message=message):
                self.messages.append(message)
            case ToolCallFinished():
                self.messages.append(event.message)
                self.tool_calls.append(ToolRecord(event.call.name, event.arguments, event.result, event.duration_ms))
            case Usage(tokens=tokens):
                self.usage += tokens
            case TurnFinished(finish_reason=reason):
                self.finish_reason = reason
            case TurnStarted() | Token() | ToolCallStarted() | Status() | Failed():
                pass


def collect(events: Iterable[Event]) -> Outcome:
    """Return the outcome of a turn that has ended."""
    outcome = Outcome()
    for event in events:
        outcome.add(event)
    return outcome
