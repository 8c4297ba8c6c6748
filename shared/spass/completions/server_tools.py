"""Run server tools in a chat: offer them to the model with the caller's tools, run their calls, and return the results to it.

The caller gets one assistant message, as from a model without server tools:

- Its text is the text of all model calls, in their order, separated by empty lines. If the caller requested JSON, it is the text
of
  the last call only, because text before a tool call would make it invalid.
- Its tool calls are calls of the caller's tools, which end the loop. Calls of server tools in the same answer are neither run nor
  kept: their results could not be stored until the caller returns with the others. The model can repeat them.
- The result of a call of an unknown tool is an error for the model; the caller never sees it.
- The results of server tools are not part of the conversation that the caller continues.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.messages import FinishReason, Message, TokenUsage, ToolCall, ToolSpec
from spass.llm.types import ChatDelta, ChatReply, ChatRequest, ReplyBuilder, ToolCallDelta

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

    def chat(self, calls: Calls, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer as ``Calls.chat`` does, running server tools in between. The last piece has the usage of all calls.

        Raises:
            SpassError: the same as ``Calls.chat``; the iteration also if a tool failed fatally.
        """
        offered = replace(request, tools=(*request.tools, *self.specs))
        return self._turns(calls, scope, offered, calls.chat(scope, offered), frozenset(tool.name for tool in request.tools))

    async def _turns(
        self,
        calls: Calls,
        scope: Scope,
        request: ChatRequest,
        answer: AsyncGenerator[ChatDelta, None],
        callers: Collection[str],
    ) -> AsyncGenerator[ChatDelta, None]:
        usage = TokenUsage()
        spoken = False
        for left in reversed(range(MAX_MODEL_CALLS)):
            turn = _ModelCall(callers, wants_json=_wants_json(request), follows_text=spoken)
            async with aclosing(answer) as deltas:
                async for delta in deltas:
                    if (piece := turn.visible(delta)) is not None:
                        yield piece
            reply = turn.reply
            usage += reply.usage or TokenUsage()
            tool_calls = turn.gateway_calls
            if not tool_calls or not left or reply.finish_reason in _TRUNCATED:
                if text := turn.held_text:
                    yield ChatDelta(text)
                yield ChatDelta(finish_reason=_final_reason(reply, tool_calls), usage=usage)
                return
            spoken = spoken or turn.spoke
            request = _next_request(request, reply.replayable, await self._run(scope, tool_calls), last=left == 1)
            answer = calls.chat(scope, request)

    async def _run(self, scope: Scope, tool_calls: Sequence[ToolCall]) -> Sequence[Message]:
        """Run ``tool_calls`` and return their results in the same order."""
        names = [tool.name for tool in self.specs]
        return [answer.message for answer in await self.toolbox.execute_all(scope, tool_calls, allowed=names)]


def _wants_json(request: ChatRequest) -> bool:
    return request.response_format is not None and request.response_format.get("type") != "text"


def _final_reason(reply: ChatReply, tool_calls: Sequence[ToolCall]) -> FinishReason:
    """Return the finish reason; ``length`` also if the limit of model calls was reached."""
    return FinishReason.LENGTH if tool_calls and reply.finish_reason not in _TRUNCATED else reply.finish_reason


def _next_request(request: ChatRequest, answer: Message, results: Sequence[Message], *, last: bool) -> ChatRequest:
    """Return ``request`` with one more turn. Tools stay listed even if they may not be called: some providers refuse a
    conversation with calls of unlisted tools."""
    return replace(request, messages=(*request.messages, answer, *results), tool_choice="none" if last else request.tool_choice)


class _ModelCall:
    """Split one model call into the part that the caller sees and the calls of server tools."""

    def __init__(self, callers: Collection[str], *, wants_json: bool, follows_text: bool) -> None:
        self._callers = callers
        self._holds_text = wants_json
        self._follows_text = follows_text
        self._builder = ReplyBuilder()
        self._calls: dict[int, _PendingCall] = {}
        self._shown_calls = 0
        self.spoke = False

    def visible(self, delta: ChatDelta) -> ChatDelta | None:
        """Return the part of ``delta`` that the caller sees now, or None."""
        self._builder.add(delta)
        content = "" if self._holds_text else self._placed(delta.content)
        calls = tuple(self._shown(delta.tool_calls))
        return ChatDelta(content, calls, refusal=delta.refusal) if content or calls or delta.refusal else None

    @property
    def reply(self) -> ChatReply:
        """Return the whole answer, once it has ended."""
        return self._builder.reply

    @property
    def held_text(self) -> str:
        """Return the text that was held, if the answer is the last one."""
        return self.reply.message.content if self._holds_text else ""

    @property
    def gateway_calls(self) -> Sequence[ToolCall]:
        """Return the calls of server tools; none if the caller has to answer any call."""
        return () if self._shown_calls else self.reply.message.tool_calls

    def _placed(self, text: str) -> str:
        if not text or self.spoke:
            return text
        self.spoke = True
        return _TEXT_SEPARATOR + text if self._follows_text else text

    def _shown(self, pieces: Sequence[ToolCallDelta]) -> Iterator[ToolCallDelta]:
        """Yield the pieces of the caller's calls, numbered without the others. A call without a name yet waits for it."""
        for piece in pieces:
            seen = self._calls.get(piece.index)
            if seen is not None and seen.so_far.name:
                shown = piece
            else:
                shown = _join_deltas(seen.so_far, piece) if seen else piece
                seen = self._calls[piece.index] = _PendingCall(shown, self._number_of(shown.name))
            if seen.number is not None:
                yield replace(shown, index=seen.number)

    def _number_of(self, name: str | None) -> int | None:
        if name not in self._callers:
            return None
        self._shown_calls += 1
        return self._shown_calls - 1


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call up to the piece with its name. ``number`` is its index among the caller's calls; None for other calls."""

    so_far: ToolCallDelta
    number: int | None


def _join_deltas(first: ToolCallDelta, second: ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(first.index, first.id or second.id, second.name, first.arguments + second.arguments)
