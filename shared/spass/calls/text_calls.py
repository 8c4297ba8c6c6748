"""Recognise the tool calls that many models write as text. The result is as if the model had sent native calls.

- A reply that consists of calls of offered tools becomes these calls (``calls.text_call_parser``). Only blocks of think text
  (``<think>…</think>``) may come before them; they stay text.
- A reply of words becomes words and calls if it has one fenced block, that block consists of calls, and the words have no markup,
  which may be around a quotation. Calls elsewhere between words stay text: a model may only speak of them.
- Text is held while it may be the beginning of calls, and released at the first character that rules this out. Words after a
  block of calls are held too, because another block makes both of them text. Other replies are not delayed.
- A reply that was cut off, has a refusal or has other tool calls stays text, and so does one that would need more than
  ``MAX_CHARACTERS`` to be held.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from spass.calls.text_call_parser import TextCall, TextCallScanner, parse_calls
from spass.core.ids import new_id
from spass.core.json import InvalidJson
from spass.core.messages import CUT_OFF, FinishReason, ToolCallDelta
from spass.core.think_filter import ThinkBlocks, begins_think_block
from spass.models.types import ChatDelta, ChatRequest, NamedTool
from spass.tenancy.config import ModelConfig

MAX_CHARACTERS: Final = 64 * 1024
"""Characters of a reply that are held."""

_BLANKS: Final = " \t\r\n"
_FENCE: Final = re.compile(r"\n(`{3}|~{3}|`{0,2}\Z|~{0,2}\Z)")
"""The beginning of a line that is a fence, or that may become one in the next piece."""
_QUOTED: Final = r"<[a-z/!]|\[/?think\]|\n {1,3}(?:`{3}|~{3})"
"""Markup or an indented fence: a block near it may be a quotation or a thought (``<seed:think>``, ``<pre>``, ``[THINK]``)."""
_BEFORE_BLOCK: Final = re.compile(_QUOTED, re.IGNORECASE | re.ASCII)
_AFTER_BLOCK: Final = re.compile(rf"{_QUOTED}|\n(?:`{{3}}|~{{3}})", re.IGNORECASE | re.ASCII)
_MAX_INCOMPLETE: Final = len("[/THINK")


def text_call_reader(model: ModelConfig, request: ChatRequest, mark: str | None) -> "TextCallReader | None":
    """Return a reader for the reply to ``request``, or None if ``model`` does not write its calls as text or may not call a tool.
    ``mark`` is the character that stands for blanks in the request's data: the model may write it too."""
    if model.tool_calls == "native" or request.tool_choice == "none":
        return None
    names = {tool.name for tool in request.tools}
    if isinstance(request.tool_choice, NamedTool):
        names &= {request.tool_choice.name}
    if not names:
        return None
    is_alone = request.extra.get("parallel_tool_calls") is False
    return TextCallReader(names, begins_thinking=model.begins_thinking, mark=mark, max_calls=1 if is_alone else None)


class TextCallReader:
    """Replace the text of one reply by its calls, if it has calls. The result does not depend on where it is cut."""

    def __init__(
        self, names: Collection[str], *, begins_thinking: bool = False, mark: str | None = None, max_calls: int | None = None
    ) -> None:
        self._names = names
        self._begins_thinking = begins_thinking
        self._mark = mark or ""
        self._max_calls = max_calls
        self._is_decided = False  # all further text is passed on
        self._think_blocks: ThinkBlocks | None = None  # while a block is open
        self._words: _Words | None = None  # once the reply has words
        self._begin()

    def _begin(self, *, reads_block: bool = False) -> None:
        self._scanner = TextCallScanner(self._names, _BLANKS + self._mark, reads_block=reads_block)
        self._held: list[str] = []
        self._held_characters = 0
        self._after_block = ""  # the last characters after the block that is held

    def feed(self, delta: ChatDelta) -> ChatDelta:
        """Return ``delta`` with the text that can be shown after it, and with the calls if it ends the reply."""
        if self._is_decided:
            return delta
        content = self._feed(delta.content) if delta.content else ""
        if delta.refusal or delta.tool_calls:
            content += self._release()
        delta = replace(delta, content=content)
        return delta if delta.finish_reason is None else self._end(delta, delta.finish_reason)

    def flush(self) -> ChatDelta:
        """Return what is still held. Call it once, at the end: a provider may send no finish reason."""
        return ChatDelta() if self._is_decided else self._end(ChatDelta(), FinishReason.STOP)

    def _end(self, delta: ChatDelta, reason: FinishReason) -> ChatDelta:
        scanner, is_whole_reply = self._scanner, self._words is None and self._think_blocks is None
        can_be_call, begins_thinking = reason not in CUT_OFF, self._begins_thinking
        text = self._release()
        calls = self._read(text, scanner) if can_be_call and scanner.is_complete else ()
        if calls:
            pieces = (ToolCallDelta(index, new_id("call"), call.name, call.arguments) for index, call in enumerate(calls))
            words = text[scanner.end :] if scanner.end is not None else ""
            reason = FinishReason.TOOL_CALLS
            return replace(delta, content=delta.content + words, tool_calls=tuple(pieces), finish_reason=reason)
        if text and can_be_call and is_whole_reply and not begins_thinking:  # what follows a block of calls may be words
            self._is_decided, self._words = False, _Words()
            delta = replace(delta, content=delta.content + self._feed_words(self._words, text))
            return delta if self._is_decided else self._end(delta, reason)
        return replace(delta, content=delta.content + text)

    def _release(self) -> str:
        text = "".join(self._held)
        if self._words is not None:
            text = self._words.take() + text
        self._begin()
        self._is_decided = True
        return text

    def _feed(self, text: str) -> str:
        shown = ""
        while text and not self._is_decided:
            if self._think_blocks is not None:
                thoughts, text = self._think_blocks.split(text)
                shown += thoughts
                if not self._think_blocks.is_open:
                    self._think_blocks = None
            elif self._words is not None:
                return shown + self._feed_words(self._words, text)
            elif self._hold(text):
                return shown
            else:
                text = self._release()
                self._is_decided = False
                if not self._begin_thinking(text):
                    self._words = _Words()
        return shown + text

    def _feed_words(self, words: "_Words", text: str) -> str:
        """Return what can be shown of the words of a reply. From the beginning of its first fenced block on, text is held."""
        shown = ""
        if not words.is_over:
            shown, text = words.feed(text)
            if not words.is_over:
                return shown
            self._begin(reads_block=True)
        if text and not (self._hold(text) and self._is_only_block(text)):
            shown += self._release()
        # Think text between words is not removed before this reader.
        if words.may_quote and not self._is_decided:
            shown += self._release()
        return shown

    def _is_only_block(self, text: str) -> bool:
        """Return whether neither another block nor markup follows the block that is held. ``text`` was held last."""
        end = self._scanner.end
        if end is None:
            return True
        begin = self._held_characters - len(text)
        after = self._after_block + text[max(0, end - begin) :]
        self._after_block = after[-_MAX_INCOMPLETE:]
        return not _AFTER_BLOCK.search(after)

    def _hold(self, text: str) -> bool:
        """Hold ``text``. Return whether all that is held may be the beginning of calls."""
        room = MAX_CHARACTERS - self._held_characters
        self._held.append(text)
        self._held_characters += len(text)
        return self._scanner.feed(text[:room]) and len(text) <= room

    def _begin_thinking(self, text: str) -> bool:
        """Return whether ``text``, which is not a call, begins with think text: calls may follow it."""
        if self._begins_thinking or begins_think_block(text.lstrip(_BLANKS + self._mark)):
            self._think_blocks = ThinkBlocks(begins_thinking=self._begins_thinking)
        self._begins_thinking = False
        return self._think_blocks is not None

    def _read(self, text: str, scanner: TextCallScanner) -> Sequence[TextCall]:
        """Return the calls in ``text``, or nothing if one of them cannot be read."""
        try:
            calls = parse_calls(text, scanner.found, self._mark)
        except InvalidJson:
            return ()
        return calls if self._max_calls is None or len(calls) <= self._max_calls else ()


class _Words:
    """The words of a reply before its first fenced block."""

    def __init__(self) -> None:
        self.is_over = False
        self.may_quote = False
        self._line: str | None = ""  # the beginning of a line that may become a fence, or None
        self._last = "\n"  # the last characters, which may begin a tag or an indented fence

    def take(self) -> str:
        held, self._line = self._line or "", None
        return held

    def feed(self, text: str) -> tuple[str, str]:
        """Return the words that can be shown, and the beginning of a fenced block if the words are over."""
        start = 0
        if self._line is not None:  # the pattern needs the line break, which has been shown
            text, start = f"\n{self._line}{text}", 1
            self._line = None
        shown, rest = text[start:], ""
        if found := _FENCE.search(text):
            shown, rest = text[start : found.start(1)], text[found.start(1) :]
            self.is_over = len(found[1]) == 3
            if not self.is_over:
                self._line, rest = rest, ""
        tail = self._last + shown
        self.may_quote |= _BEFORE_BLOCK.search(tail) is not None
        self._last = tail[-_MAX_INCOMPLETE:]
        return shown, rest
