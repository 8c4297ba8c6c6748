"""What a turn shows and records: the text of each step, and the message that is recorded of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from spass.core.effects import AssistantReply
from spass.core.events import Event, InferenceFinished, InferenceStarted, MessageWritten, Token
from spass.core.messages import FinishReason, Message, Role, ToolCall

_MAX_TOKEN_CHARACTERS: Final = 8 * 1024
"""Characters of one ``Token``: at most 32 KiB of UTF-8."""
_NO_REPLY: Final = AssistantReply("")


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
