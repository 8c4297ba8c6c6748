"""Read answers in OpenAI's chat format (https://platform.openai.com/docs/api-reference/chat). Servers differ in many details."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator

from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.errors import BackendUnavailable
from spass.models.providers.error_responses import error_inside_answer
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import AnswerReader, merge_deltas
from spass.models.providers.openai_calls import OpenAiCalls, ToolCallPayload
from spass.models.providers.payloads import FewItems, LenientObject, LenientText, Tokens, parse
from spass.models.providers.sse import ServerSentEvent, SseParser
from spass.models.types import ChatDelta

_FINISH_REASONS: Final = {
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}

_MAX_MONEY: Final = Decimal("1e30")
"""A larger number cannot be a price, and the arithmetic of ``Decimal`` fails for the largest numbers."""


def _money(value: object) -> Decimal | None:
    """Return a price in US dollars, given as a number or as ``{"usd": …}``. A wrong price must not fail a good answer."""
    if isinstance(value, dict):
        value = value.get("usd")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        money = Decimal(str(value))
    except InvalidOperation:
        return None
    return money if money.is_finite() and 0 <= money <= _MAX_MONEY else None


Money = Annotated[Decimal | None, BeforeValidator(_money)]


class UsagePayload(BaseModel):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    total_tokens: Tokens = 0
    cost: Money = None
    cost_in_usd_ticks: Money = None  # xAI: 10^10 ticks are a dollar

    @property
    def tokens(self) -> TokenUsage:
        """Return the tokens, 0 where unknown. Some servers (xAI, Google) count reasoning only in the total."""
        written = self.total_tokens - self.prompt_tokens if self.prompt_tokens else 0
        return TokenUsage(self.prompt_tokens, max(self.completion_tokens, written))

    @property
    def cost_usd(self) -> Decimal | None:
        if self.cost_in_usd_ticks is not None:
            return self.cost_in_usd_ticks / 10**10
        return self.cost


Usage = Annotated[UsagePayload | None, LenientObject]


class MessagePayload(BaseModel):
    """A whole message or a delta of one. Servers use one of two fields for the reasoning, or both."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCallPayload], FewItems] | None = None
    reasoning: LenientText = ""
    reasoning_content: LenientText = ""


class ChoicePayload(BaseModel):
    message: MessagePayload | None = None
    delta: MessagePayload | None = None
    finish_reason: str | None = None


class ChatPayload(BaseModel):
    """A blocking answer or a chunk of a stream."""

    choices: Annotated[list[ChoicePayload], FewItems] | None = None
    usage: Usage = None
    cost: Money = None
    error: object = None

    @property
    def cost_usd(self) -> Decimal | None:
        cost = self.usage.cost_usd if self.usage else None
        return cost if cost is not None else self.cost


class _EventParser(SseParser):
    """Parse the events of a stream, or one whole JSON answer, because some servers ignore ``stream``."""

    def __init__(self) -> None:
        super().__init__()
        self._is_json: bool | None = None  # None before the first visible byte
        self._json_pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._is_json is None and (visible := chunk.lstrip()):
            self._is_json = visible.startswith(b"{")
        if not self._is_json:
            return super().feed(chunk)
        self._json_pieces.append(chunk)
        return []

    def close(self) -> list[ServerSentEvent]:
        if self._is_json:
            return [ServerSentEvent("message", b"".join(self._json_pieces).decode(errors="replace"))]
        return super().close()


class OpenAiReader(AnswerReader[ServerSentEvent]):
    """Read one answer."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        super().__init__(_EventParser(), secrets)
        self._calls = OpenAiCalls(self._texts)
        self._has_payload = False
        self._is_done = False
        self._finish_reason: FinishReason | None = None

    def is_last(self, event: ServerSentEvent) -> bool:
        return event.data.strip() == "[DONE]"

    def read(self, event: ServerSentEvent) -> ChatDelta | None:
        if self.is_last(event):
            self._is_done = True
            return None
        return self._read(self._parse(event.data))

    def end(self) -> ChatDelta | None:
        if not self._has_payload or not (self._is_done or self._finish_reason):
            raise BackendUnavailable("The provider's stream broke off before its end.")
        return self._end()

    def read_whole(self, body: bytes) -> ChatDelta:
        payload = self._parse(body)
        if not payload.choices or payload.choices[0].message is None:
            raise malformed_response("it holds no message")
        return merge_deltas([self._read(payload), self._end()])

    def _parse(self, text: str | bytes) -> ChatPayload:
        payload = parse(ChatPayload, text)
        if payload.error:
            raise error_inside_answer(payload.error, secrets=self._secrets)
        return payload

    def _read(self, payload: ChatPayload) -> ChatDelta | None:
        """Return the delta that ``payload`` adds, or None."""
        self._has_payload = True
        choice = payload.choices[0] if payload.choices else ChoicePayload()
        message = choice.message or choice.delta or MessagePayload()
        calls: list[ToolCallDelta] = []
        for position, call in enumerate(message.tool_calls or ()):
            calls += self._calls.add(position, call)
        finish = self._finish(choice.finish_reason) if choice.finish_reason else None
        if finish and self._calls:
            calls += self._calls.finish()
        content = self._texts.add("content", message.content or "")
        refusal = self._texts.add("refusal", message.refusal or "")
        usage = payload.usage.tokens if payload.usage else None
        self._reasoning_characters += max(len(message.reasoning), len(message.reasoning_content))
        is_part_of_answer = (
            content or refusal or calls or finish or (usage and usage.total_tokens) or payload.cost_usd is not None
        )
        delta = ChatDelta(content, tuple(calls), finish, usage, payload.cost_usd, refusal)
        return self._next_delta(delta if is_part_of_answer else None)

    def _end(self) -> ChatDelta | None:
        """Return the rest of calls and characters, and a finish reason if the provider gave none, or None."""
        last = self._texts.end()
        if self._calls and (calls := tuple(self._calls.end())):
            last = replace(last or ChatDelta(), tool_calls=calls + (last.tool_calls if last else ()))
        if self._finish_reason is not None:
            return last
        return self._with_reasoning(replace(last or ChatDelta(), finish_reason=self._finish("stop")))

    def _finish(self, reason: str) -> FinishReason:
        finish = _FINISH_REASONS.get(reason, FinishReason.STOP)
        # Some servers, and OpenAI for a named tool, send "stop" after tool calls, but the caller must run the tools.
        self._finish_reason = FinishReason.TOOL_CALLS if finish is FinishReason.STOP and self._calls else finish
        return self._finish_reason
