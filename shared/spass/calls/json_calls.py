"""Recognise the tool calls that a model such as Llama 4 Scout writes as JSON text. The result is as if it had sent native calls.

- The whole reply must be one call or a list of calls of offered tools, in a code fence or not (``calls.json_call_scanner``). Only
  blocks of think text (``<think>…</think>``) may come before it; they stay text. Any other reply stays text.
- Text is held while it may be the beginning of calls, and released at the first character that rules this out. Other replies
  are not delayed.
- A reply that was cut off, has a refusal or has other tool calls stays text, and so does one of more than ``MAX_CHARACTERS``.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spass.calls.json_call_scanner import JsonCallScanner
from spass.core.ids import new_id
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import CUT_OFF, FinishReason, Json, ToolCallDelta
from spass.core.think_filter import ThinkBlocks, begins_think_block
from spass.llm.types import ChatDelta, ChatRequest, NamedTool
from spass.tenancy.config import ModelConfig

MAX_CHARACTERS: Final = 64 * 1024
"""Characters of a reply that are held."""

_BLANKS: Final = " \t\r\n"
# A string without an end matches too. Otherwise each of its quotes would start another search to the end of the text.
_STRING_OR_MARK: Final = r'"(?:[^"\\]|\\.)*+"?|MARK'
_FENCES: Final = ("```", "~~~")
_JSON: Final = re.compile(r"[\[{]")
_CALL_KEYS: Final = frozenset({"type", "id"})


def json_call_reader(model: ModelConfig, request: ChatRequest, mark: str | None) -> "JsonCallReader | None":
    """Return a reader for the reply to ``request``, or None if ``model`` does not write its calls as text or may not call a tool.

    ``mark`` is the character that stands for blanks in the request's data: the model may write it too.
    """
    if model.tool_calls == "native" or request.tool_choice == "none":
        return None
    names = {tool.name for tool in request.tools}
    if isinstance(request.tool_choice, NamedTool):
        names &= {request.tool_choice.name}
    if not names:
        return None
    is_alone = request.extra.get("parallel_tool_calls") is False
    return JsonCallReader(names, begins_thinking=model.begins_thinking, mark=mark, max_calls=1 if is_alone else None)


class JsonCallReader:
    """Replace the text of one reply by its calls, if it consists of calls. The result does not depend on where it is cut."""

    def __init__(
        self, names: Collection[str], *, begins_thinking: bool = False, mark: str | None = None, max_calls: int | None = None
    ) -> None:
        self._names = names
        self._begins_thinking = begins_thinking
        self._mark = mark or ""
        self._max_calls = max_calls
        self._is_decided = False  # all further text is passed on
        self._think_blocks: ThinkBlocks | None = None  # while a block is open
        self._begin()

    def _begin(self) -> None:
        self._scanner = JsonCallScanner(self._names, _BLANKS + self._mark)
        self._held: list[str] = []
        self._held_characters = 0

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
        is_call = self._scanner.is_complete and reason not in CUT_OFF
        text = self._release()
        calls = self._read(text) if is_call else ()
        if not calls:
            return replace(delta, content=delta.content + text)
        pieces = (ToolCallDelta(index, new_id("call"), call.name, call.arguments) for index, call in enumerate(calls))
        return replace(delta, tool_calls=tuple(pieces), finish_reason=FinishReason.TOOL_CALLS)

    def _release(self) -> str:
        """Return the text that is held. All further text is passed on."""
        text = "".join(self._held)
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
            elif self._hold(text):
                return shown
            else:
                text = self._release()
                self._is_decided = not self._begin_thinking(text)
        return shown + text

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

    def _read(self, text: str) -> "Sequence[_Call]":
        """Return the calls in ``text``, which has their form, or nothing if one of them cannot be read."""
        text = self._without_marks(text).strip(_BLANKS)
        if text.startswith(_FENCES):
            start = _JSON.search(text)
            text = text[start.start() if start else 0 : -len(_FENCES[0])]
        try:
            calls = [self._read_call(call) for call in _calls(read_object(f'{{"reply":{text}}}')["reply"])]
        except InvalidJson:
            return ()
        return calls if self._max_calls is None or len(calls) <= self._max_calls else ()

    def _read_call(self, call: Mapping[str, Json]) -> "_Call":
        """Return the call that a model wrote as the object ``call``.

        Raises:
            InvalidJson: it does not have one name and one object of arguments.
        """
        function = call.get("function")
        if isinstance(function, Mapping):
            if call.keys() - _CALL_KEYS != {"function"}:
                raise InvalidJson("it describes its function twice")
            call = function
        match {key: value for key, value in call.items() if key not in _CALL_KEYS}:
            case {"name": str(name), "arguments": arguments, **other} if not other:
                pass
            case {"name": str(name), "parameters": arguments, **other} if not other:
                pass
            case _:
                raise InvalidJson("a call needs a name and its arguments")
        if isinstance(arguments, str):
            arguments = read_object(self._without_marks(arguments))
        return _Call(name, dump(arguments))

    def _without_marks(self, text: str) -> str:
        """Return ``text``, which is JSON, with blanks for the marks between its tokens. The marks in its strings stay: they are
        removed from the arguments of every call."""
        if not self._mark or self._mark not in text:
            return text
        pattern = _STRING_OR_MARK.replace("MARK", re.escape(self._mark))
        return re.sub(pattern, lambda found: " " if found[0] == self._mark else found[0], text, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: str


def _calls(reply: Json) -> Iterator[Mapping[str, Json]]:
    """Yield the objects that describe calls.

    Raises:
        InvalidJson: ``tool_calls`` has other members beside it.
    """
    if isinstance(reply, Mapping) and "tool_calls" in reply:
        if len(reply) > 1:
            raise InvalidJson("a list of calls needs no other member")
        reply = reply["tool_calls"]
    for call in reply if isinstance(reply, list) else [reply]:
        if isinstance(call, Mapping):
            yield call
