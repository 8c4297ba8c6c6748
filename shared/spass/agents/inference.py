"""Perform ``Infer``, read replies from their deltas without think text, and keep what a turn shows and records of them."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from spass.agents.kinds.markers import ShowFilter
from spass.core.effects import AssistantReply, CallError, Infer, TextVisibility
from spass.core.errors import SpassError, UpstreamTimeout, internal_error
from spass.core.events import Event, InferenceFinished, InferenceStarted, MessageWritten, RefusalDelta, Token
from spass.core.ids import new_id
from spass.core.messages import CUT_OFF, NO_TOKENS, FinishReason, Message, Role, ToolCall, ToolCallDelta, replayable_name
from spass.core.think_filter import ThinkFilter
from spass.core.time import Deadline
from spass.models.types import ChatDelta, ChatRequest, ReplyBuilder
from spass.redaction.log import failure_line, write_line

if TYPE_CHECKING:
    from spass.calls.model_calls import ModelCalls
    from spass.calls.scope import Scope

MAX_CALLS: Final = 128
"""Tool calls of one reply that are kept. The toolbox answers those that it does not run with errors, so without a limit a model
that repeats a call thousands of times would make the next prompt much more expensive than its reply."""
_MAX_TOKEN_CHARACTERS: Final = 8 * 1024
"""Characters of one ``Token``: at most 32 KiB of UTF-8."""
_NO_REPLY: Final = AssistantReply("")


class Inference(Protocol):
    """Perform ``Infer``."""

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]: ...

    def begins_thinking(self, effect: Infer) -> bool: ...


class InferPerformer:
    """Call models for one turn. ``defaults`` has the model, the offered tools and the sampling values that apply where an effect
    has none. Its ``stream`` is True, so that the timeout of a backend applies between bytes."""

    def __init__(self, calls: "ModelCalls", scope: "Scope", defaults: ChatRequest) -> None:
        self._calls = calls
        self._scope = scope
        self._defaults = replace(defaults, stream=True)

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        """Yield the reply in deltas. Errors are those of ``Calls.chat``."""
        return self._calls.chat(self._scope, self._request(effect))

    def begins_thinking(self, effect: Infer) -> bool:
        """Return whether the model begins its replies with think text."""
        return self._calls.begins_thinking(effect.model or self._defaults.model)

    def _request(self, effect: Infer) -> ChatRequest:
        defaults = self._defaults
        tools = defaults.tools if effect.tools != "none" else ()
        tool_choice = defaults.tool_choice if effect.tools == "offered" else "none"
        return replace(
            defaults,
            model=effect.model or defaults.model,
            messages=effect.messages,
            tools=tools,
            tool_choice=tool_choice if tools else None,
            temperature=defaults.temperature if effect.temperature is None else effect.temperature,
            max_tokens=defaults.max_tokens if effect.max_tokens is None else effect.max_tokens,
            stop=effect.stop or defaults.stop,
        )


class ReplyReader:
    """Assemble a reply and filter its text.

    ``started`` is True once the model has written anything. ``passed_on`` is what a client reads of the last delta beside text.
    """

    passed_on: Sequence[RefusalDelta | ToolCallDelta] = ()

    def __init__(self, show: TextVisibility, *, begins_thinking: bool = False) -> None:
        self.started = False
        self._builder = ReplyBuilder()
        self._think_filter = ThinkFilter(begins_thinking=begins_thinking)
        self._show_filter = ShowFilter(show) if show is not None else None
        self._text: list[str] = []

    def add(self, delta: ChatDelta) -> str:
        """Add a piece of the reply. Return the text that can be shown now."""
        self._builder.add(delta)
        self.started = self.started or bool(delta.content or delta.refusal or delta.tool_calls)
        written = delta.content + delta.refusal
        return self._show(self._think_filter.feed(written)) if written else ""

    def end(self) -> str:
        """Return the rest of the text that can be shown, once the reply has ended."""
        return self._show(self._think_filter.flush()) + (self._show_filter.flush() if self._show_filter is not None else "")

    def _show(self, text: str) -> str:
        if not text:
            return ""
        self._text.append(text)
        return self._show_filter.feed(text) if self._show_filter is not None else text

    @property
    def reply(self) -> AssistantReply:
        """Return the whole reply. A refusal is part of its text. Tool calls of a reply that was cut off are dropped, and so are
        those after the first ``MAX_CALLS``."""
        reply = self._builder.reply.with_refusal_as_text
        reason = reply.finish_reason
        calls = () if reason in CUT_OFF else give_ids(reply.replayable_message.tool_calls[:MAX_CALLS])
        return AssistantReply("".join(self._text), calls, reason, reply.usage or NO_TOKENS)


class ClientReplyReader(ReplyReader):
    """Read a reply for a client who reads the text unfiltered and refusals apart from it, and who answers the calls of
    ``client_tools``."""

    def __init__(self, show: TextVisibility, client_tools: Collection[str]) -> None:
        super().__init__(show)
        self._client_tools = client_tools
        self._builder = ReplyBuilder(self._is_for_client)

    def add(self, delta: ChatDelta) -> str:
        pieces = self._builder.add(delta)
        self.started = self.started or bool(delta.content or delta.refusal or delta.tool_calls)
        if delta.refusal or pieces or self.passed_on:
            refusal = [RefusalDelta(delta.refusal)] if delta.refusal else []
            self.passed_on = [*refusal, *(replace(piece, name=piece.name and replayable_name(piece.name)) for piece in pieces)]
        return self._show(delta.content)

    @property
    def reply(self) -> AssistantReply:
        """Return the whole reply without its refusal. Of a reply that was cut off, only the client's calls remain.
        Of other calls, the first ``MAX_CALLS`` remain."""
        reply = self._builder.reply
        calls = give_ids(reply.replayable_message.tool_calls)
        others = [call.id for call in calls if not self._is_for_client(call.name)]
        dropped = {*(others if reply.finish_reason in CUT_OFF else others[MAX_CALLS:])}
        calls = tuple(call for call in calls if call.id not in dropped)
        return AssistantReply("".join(self._text), calls, reply.finish_reason, reply.usage or NO_TOKENS)

    def _is_for_client(self, name: str) -> bool:
        return replayable_name(name) in self._client_tools


def give_ids(calls: tuple[ToolCall, ...], used: Collection[str] = ()) -> tuple[ToolCall, ...]:
    """Return ``calls`` with an id of its own for each call that has none, that of an earlier call or one of ``used``."""
    ids = set(used)
    named: list[ToolCall] = []
    for call in calls:
        unique = call if call.id and call.id not in ids else replace(call, id=new_id("call"))
        ids.add(unique.id)
        named.append(unique)
    return tuple(named)


async def call_aside(infer: Inference, effect: Infer, deadline: Deadline) -> AssistantReply:
    """Make the side call ``effect`` and return the whole reply without think text. If it fails, the reply has its ``error``.

    The call may take half of the time until ``deadline``, so that the turn can go on without it.
    """
    error: SpassError
    try:
        async with asyncio.timeout(deadline.remaining() / 2):
            return await read_reply(infer, effect)
    except TimeoutError:
        error = UpstreamTimeout("The model did not answer in half of the time that was left.")
    except SpassError as failure:
        error = failure
    except Exception as failure:  # noqa: BLE001 (whatever such a call does, the turn goes on)
        write_line(failure_line(failure, ""))
        error = internal_error(failure)
    return AssistantReply("", error=CallError(error.code, error.message))


async def read_reply(infer: Inference, effect: Infer) -> AssistantReply:
    """Perform ``effect`` and return the whole reply without think text. Raise SpassError if the call failed."""
    reader = ReplyReader(None, begins_thinking=infer.begins_thinking(effect))
    async with aclosing(infer.perform(effect)) as deltas:
        async for delta in deltas:
            reader.add(delta)
    reader.end()
    return reader.reply


@dataclass(slots=True)
class _OpenStep:
    """A model call of the agent whose message is not recorded yet. ``pieces`` are the text of its tokens."""

    number: int
    pieces: list[str] = field(default_factory=list)
    reply: AssistantReply = _NO_REPLY

    @property
    def shown(self) -> str:
        return "".join(self.pieces)


class Transcript:
    """The steps of one turn. A step is open from its model call until the kind's next effect decides what is recorded of it.

    So the shown text, the recorded message and the answer cannot differ.
    """

    def __init__(self) -> None:
        self._step = 0
        self._open: _OpenStep | None = None
        self._last_text = ""
        self._token_step: int | None = None

    @property
    def text(self) -> str:
        """Return the text that was shown last: that of the open step, or the last recorded one."""
        return (self._open.shown if self._open is not None else "") or self._last_text

    def begin_step(self) -> InferenceStarted:
        """Open the next step."""
        self._step += 1
        self._open = _OpenStep(self._step)
        return InferenceStarted(self._step)

    def show(self, text: str) -> Sequence[Token]:
        """Show more text of the open step."""
        if self._open is None or not text:
            return ()
        self._open.pieces.append(text)
        return self._tokens(text, self._open.number)

    def end_step(self, reply: AssistantReply) -> None:
        """Note the whole reply of the open step."""
        if self._open is not None:
            self._open.reply = reply

    def abandon_step(self) -> Iterator[Event]:
        """Close the open step, because the turn failed."""
        if self._open is not None:
            yield InferenceFinished(Message(Role.ASSISTANT, self._open.shown), None)

    def record_shown(self) -> Iterator[Event]:
        """Record the shown text of the open step, if there is one."""
        if self._open is not None:
            yield from self.record(None, (), self._open.reply.finish_reason)

    def record(self, text: str | None, calls: tuple[ToolCall, ...], finish_reason: FinishReason) -> Iterator[Event]:
        """Record ``text`` and ``calls`` as the message of the open step, or as one without a model call. None is the shown text.

        If the shown text is not the beginning of ``text``, all of ``text`` is shown as the next step.
        """
        step = self._open
        shown = step.shown if step is not None else ""
        recorded = shown if text is None else text
        if step is not None and recorded.startswith(shown):
            yield from self._tokens(recorded[len(shown) :], step.number)
        else:
            self._step += 1
            yield from self._tokens(recorded, self._step)
        self._open = None
        self._last_text = recorded or self._last_text
        message = Message(Role.ASSISTANT, recorded, calls)
        yield InferenceFinished(message, finish_reason, step.reply.usage) if step else MessageWritten(message)

    def answer(self, text: str, calls: tuple[ToolCall, ...], finish_reason: FinishReason) -> Iterator[Event]:
        """Record the answer. The tokens of the last step are its text, also if it is empty and earlier text was shown."""
        *tokens, recorded = self.record(text, calls, finish_reason)
        yield from tokens
        if self._token_step not in (None, self._step):
            yield Token("", self._step)
        yield recorded

    def _tokens(self, text: str, step: int) -> Sequence[Token]:
        if not text:
            return ()
        self._token_step = step
        if len(text) <= _MAX_TOKEN_CHARACTERS:
            return (Token(text, step),)
        starts = range(0, len(text), _MAX_TOKEN_CHARACTERS)
        return [Token(text[start : start + _MAX_TOKEN_CHARACTERS], step) for start in starts]
