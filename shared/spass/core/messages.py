"""Messages of a conversation, as agents, sessions and models share them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, TypeAlias

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
"""A value that JSON can represent."""


CHARACTERS_PER_TOKEN: Final = 4
"""The estimate for providers that do not count tokens."""
_TOKENS_PER_IMAGE: Final = 1000  # OpenAI and Anthropic count 700 to 1600 tokens for an image of a screen's size

MAX_OUTPUT_TOKENS: Final = 2**31 - 1
"""Tokens. Providers accept a 32-bit integer, and the table cannot store larger sums."""

_DISALLOWED_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool. ``arguments`` is JSON text as the model wrote it; it may be invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of tool call number ``index`` of a reply. ``id`` and ``name`` arrive in one piece; ``arguments`` is a part to
    append. As an event of a turn, it is a piece of a call that is left to the client."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a user's message. ``url`` is an ``https:`` address or a ``data:`` URL in base64. ``detail`` sets the
    resolution, if the provider supports it."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A tool message answers the call ``tool_call_id``; an assistant message may request ``tool_calls``. ``name``
    distinguishes speakers of one role, if the provider supports it.

    A message with images has ``parts``: texts and images in order. Its ``content`` is the texts joined by line breaks. ``data``
    is True for text that was looked up and that no participant wrote. ``heading`` is our own line in front of such text: a model
    reads it as it is, outside of what is marked as data.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    parts: tuple[str | Image, ...] = ()
    data: bool = False
    heading: str = ""

    def count_characters(self) -> int:
        """Return the length of the text and of the tool calls, and an equivalent for the images."""
        images = sum(isinstance(part, Image) for part in self.parts)
        calls = sum(len(call.name) + len(call.arguments) for call in self.tool_calls)
        return len(self.heading) + len(self.content) + calls + images * _TOKENS_PER_IMAGE * CHARACTERS_PER_TOKEN

    def rewritten(self, change: Callable[[str], str]) -> "Message":
        """Return the message with ``change`` applied to each of its texts."""
        parts = tuple(change(part) if isinstance(part, str) else part for part in self.parts)
        content = "\n".join(part for part in parts if isinstance(part, str)) if parts else change(self.content)
        return replace(self, content=content, parts=parts)

    def with_heading_in_text(self) -> "Message":
        """Return the message with its heading as the first paragraph of its text."""
        if not self.heading:
            return self
        parts = (self.heading, *self.parts) if self.parts else ()
        return replace(self, content=f"{self.heading}\n\n{self.content}", parts=parts, heading="")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. ``parameters`` is a JSON Schema of type object. ``strict`` tells a
    provider that supports it to guarantee arguments that match the schema. ``category`` is for prompts and lists; providers do
    not receive it."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    strict: bool | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one model call, or the sum over several."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


NO_TOKENS: Final = TokenUsage()


class FinishReason(StrEnum):
    """Why a model stopped (``tool_calls``: it waits for results), or an agent's turn did (``max_turns`` and what follows).
    OpenAI's format knows only the first four."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    MAX_TURNS = "max_turns"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


CUT_OFF: Final = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
"""The reasons of a reply that is incomplete."""


def replayable_name(name: str) -> str:
    """Return the name of a tool, as a model wrote it, in a form that providers accept."""
    return _DISALLOWED_IN_NAME.sub("_", name)[:64] or "_"
