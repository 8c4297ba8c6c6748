"""Run server tools in a chat: offer them to the model with the caller's tools, run their calls, and return the results to it.

The caller gets one assistant message, as from a model without server tools:

- Its text is the text of all model calls, in their order, separated by empty lines. If the caller requested JSON, it is the text
  of the last call only, because text before a tool call would make the JSON invalid.
- Its tool calls are calls of the caller's tools, which end the loop. Calls of server tools in the same answer are dropped: their
  results could not be stored until the caller returns with the others. The model can repeat them.
- The result of a call of an unknown tool is an error for the model; the caller never sees it.
- The results of server tools are not part of the conversation that the caller continues.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.events import ToolCallDelta
from spass.core.messages import FinishReason, TokenUsage, ToolCall, ToolSpec
from spass.llm.types import ChatDelta, ChatReply, ChatRequest, ReplyBuilder

if TYPE_CHECKING:
    from spass.tools.toolbox import Toolbox

MAX_MODEL_CALLS: Final = 10
"""Model calls of one request. In the last one the model may not call tools, so that it answers."""

_TEXT_SEPARATOR: Final = "\n\n"
_TRUNCATED: Final = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The server tools of one chat, and the toolbox that runs them."""

    toolbox: "Toolbox"
    specs: tuple[ToolSpec, ...]

    async def chat(self, calls: Calls, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer as ``Calls.chat`` does, and run server tools in between. The last delta has the usage of all calls.

        Raises:
            SpassError: the same as ``Calls.chat``, or a tool failed fatally.
        """
        caller_tools = {tool.name for tool in request.tools}
        request = replace(request, tools=(*request.tools, *self.specs))
        wants_json = request.response_format is not None and request.response_format.get("type") != "text"
        usage, has_text = TokenUsage(), False
        for remaining_calls in reversed(range(MAX_MODEL_CALLS)):
            answer = _CallerView(caller_tools, hide_text=wants_json, follows_text=has_text)
            async with aclosing(calls.chat(scope, request)) as deltas:
                async for delta in deltas:
                    if (visible := answer.add(delta)) is not None:
                        yield visible
            reply, server_calls = answer.reply, answer.server_calls
            usage += reply.usage or TokenUsage()
            if not server_calls or not remaining_calls or reply.finish_reason in _TRUNCATED:
                if wants_json and reply.message.content:
                    yield ChatDelta(reply.message.content)
                # Calls that remain after the last model call are dropped: the answer is incomplete.
                reason = FinishReason.LENGTH if server_calls and reply.finish_reason not in _TRUNCATED else reply.finish_reason
                yield ChatDelta(finish_reason=reason, usage=usage)
                return
            has_text = has_text or answer.has_text
            request = await self._next_request(scope, request, reply, last=remaining_calls == 1)

    async def _next_request(self, scope: Scope, request: ChatRequest, reply: ChatReply, *, last: bool) -> ChatRequest:
        """Run the calls of ``reply`` and return ``request`` with the reply and their results.

        Tools stay listed even if they may not be called: some providers refuse a conversation with calls of unlisted tools.
        """
        names = [tool.name for tool in self.specs]
        results = await self.toolbox.execute_all(scope, reply.message.tool_calls, allowed=names)
        messages = (*request.messages, reply.replayable_message, *(result.message for result in results))
        return replace(request, messages=messages, tool_choice="none" if last else request.tool_choice)


class _CallerView:
    """Split one model answer into the part that the caller sees and the calls of server tools."""

    def __init__(self, caller_tools: Collection[str], *, hide_text: bool, follows_text: bool) -> None:
        self._caller_tools = caller_tools
        self._hide_text = hide_text
        self._follows_text = follows_text
        self._builder = ReplyBuilder()
        self._unnamed: dict[int, ToolCallDelta] = {}  # calls whose name has not arrived yet, by index
        self._indexes: dict[int, int | None] = {}  # the model's index of a call -> its index for the caller, who may not see it
        self._visible_calls = 0
        self.has_text = False

    def add(self, delta: ChatDelta) -> ChatDelta | None:
        """Add ``delta`` to the answer. Return the part of it that the caller sees now, or None."""
        self._builder.add(delta)
        content = "" if self._hide_text else delta.content
        if content and not self.has_text:
            self.has_text = True
            content = _TEXT_SEPARATOR + content if self._follows_text else content
        calls = tuple(self._visible_pieces(delta.tool_calls))
        return ChatDelta(content, calls, refusal=delta.refusal) if content or calls or delta.refusal else None

    @property
    def reply(self) -> ChatReply:
        """Return the whole answer, once it has ended."""
        return self._builder.reply

    @property
    def server_calls(self) -> Sequence[ToolCall]:
        """Return the calls of server tools; none if the caller must answer a call."""
        return () if self._visible_calls else self.reply.message.tool_calls

    def _visible_pieces(self, pieces: Sequence[ToolCallDelta]) -> Iterator[ToolCallDelta]:
        """Yield the pieces of calls of the caller's tools, numbered from 0. Hold a piece until the name of its call is known."""
        for piece in pieces:
            current = piece
            if piece.index not in self._indexes:
                if first := self._unnamed.pop(piece.index, None):
                    current = replace(piece, id=first.id or piece.id, arguments=first.arguments + piece.arguments)
                if not current.name:
                    self._unnamed[piece.index] = current
                    continue
                is_visible = current.name in self._caller_tools
                self._indexes[piece.index] = self._visible_calls if is_visible else None
                self._visible_calls += is_visible
            index = self._indexes[piece.index]
            if index is not None:
                yield replace(current, index=index)
