"""The gateway's own tools in a chat: offered to the model beside the caller's, run here, their results given to the model.

The caller gets one assistant message, as from a model without them:

- Its text is that of all model calls, in their order, an empty line between; where the caller asked for JSON it is that of the
  last call alone, since what is said before a tool is called would spoil it.
- Its tool calls are calls of the caller's tools, which end the loop. What else the model asked for in the same breath is neither
  run nor kept: nobody could hold its result until the caller comes back with the others, and the model can ask again.
- A call of a tool that nobody offered is answered with an error that the model reads; a caller never sees it.
- What the gateway's tools answered is not part of the conversation that the caller goes on with.
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
"""Of one request. In the last the model may call no tool, so that it answers."""

_TEXT_SEPARATOR: Final = "\n\n"
_TRUNCATED: Final = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The gateway's tools that one chat is offered, and what runs them."""

    toolbox: "Toolbox"
    specs: tuple[ToolSpec, ...]

    def chat(self, calls: Calls, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """As ``Calls.chat``, but that the model may use these tools on its way; the usage in the last piece is that of all calls.

        Raises:
            SpassError: as ``Calls.chat``; the iteration also where a tool failed so that nothing can go on.
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
            asked = turn.gateway_calls
            if not asked or not left or reply.finish_reason in _TRUNCATED:
                if text := turn.held_text:
                    yield ChatDelta(text)
                yield ChatDelta(finish_reason=_final_reason(reply, asked), usage=usage)
                return
            spoken = spoken or turn.spoke
            request = _next_request(request, reply.replayable, await self._run(scope, asked), last=left == 1)
            answer = calls.chat(scope, request)

    async def _run(self, scope: Scope, asked: Sequence[ToolCall]) -> Sequence[Message]:
        """The answers to ``asked``, in the same order."""
        names = [tool.name for tool in self.specs]
        return [answer.message for answer in await self.toolbox.execute_all(scope, asked, allowed=names)]


def _wants_json(request: ChatRequest) -> bool:
    return request.response_format is not None and request.response_format.get("type") != "text"


def _final_reason(reply: ChatReply, asked: Sequence[ToolCall]) -> FinishReason:
    """``length`` also says that the calls were used up before the model was done."""
    return FinishReason.LENGTH if asked and reply.finish_reason not in _TRUNCATED else reply.finish_reason


def _next_request(request: ChatRequest, said: Message, answers: Sequence[Message], *, last: bool) -> ChatRequest:
    """``request`` with one more turn in it. Tools stay named where they may not be called: some providers refuse a conversation
    that holds calls of unnamed ones."""
    return replace(request, messages=(*request.messages, said, *answers), tool_choice="none" if last else request.tool_choice)


class _ModelCall:
    """One model call, taken apart: what the caller may see of it, and what the gateway is asked for."""

    def __init__(self, callers: Collection[str], *, wants_json: bool, follows_text: bool) -> None:
        self._callers = callers
        self._holds_text = wants_json
        self._follows_text = follows_text
        self._built = ReplyBuilder()
        self._calls: dict[int, _PendingCall] = {}
        self._shown_calls = 0
        self.spoke = False

    def visible(self, delta: ChatDelta) -> ChatDelta | None:
        """What the caller is shown of ``delta`` now; None if nothing."""
        self._built.add(delta)
        content = "" if self._holds_text else self._placed(delta.content)
        calls = tuple(self._shown(delta.tool_calls))
        return ChatDelta(content, calls, refusal=delta.refusal) if content or calls or delta.refusal else None

    @property
    def reply(self) -> ChatReply:
        """The whole answer, once it has ended."""
        return self._built.reply

    @property
    def held_text(self) -> str:
        """The text not yet shown, of an answer that is the last."""
        return self.reply.message.content if self._holds_text else ""

    @property
    def gateway_calls(self) -> Sequence[ToolCall]:
        """The calls to answer here: none where the caller has to answer any."""
        return () if self._shown_calls else self.reply.message.tool_calls

    def _placed(self, text: str) -> str:
        if not text or self.spoke:
            return text
        self.spoke = True
        return _TEXT_SEPARATOR + text if self._follows_text else text

    def _shown(self, pieces: Sequence[ToolCallDelta]) -> Iterator[ToolCallDelta]:
        """The pieces of the caller's calls, numbered as if there were no others. One whose name is not yet known waits for it."""
        for piece in pieces:
            seen = self._calls.get(piece.index)
            if seen is not None and seen.so_far.name:
                said = piece
            else:
                said = _join_deltas(seen.so_far, piece) if seen else piece
                seen = self._calls[piece.index] = _PendingCall(said, self._number_of(said.name))
            if seen.number is not None:
                yield replace(said, index=seen.number)

    def _number_of(self, name: str | None) -> int | None:
        if name not in self._callers:
            return None
        self._shown_calls += 1
        return self._shown_calls - 1


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call, as it was when its name came, or as far as it has come without one. ``number`` is its place among the caller's, if
    it is one of those."""

    so_far: ToolCallDelta
    number: int | None


def _join_deltas(first: ToolCallDelta, second: ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(first.index, first.id or second.id, second.name, first.arguments + second.arguments)
