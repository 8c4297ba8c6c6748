"""Read the reply of one model call from its deltas: without think text, and as far as the kind shows it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from spass.agents.kinds.markers import ShowFilter
from spass.core.effects import AssistantReply, TextVisibility
from spass.core.events import RefusalDelta
from spass.core.ids import new_id
from spass.core.messages import CUT_OFF, NO_TOKENS, ToolCall, ToolCallDelta, replayable_name
from spass.core.think_filter import ThinkFilter
from spass.models.types import ChatDelta, ReplyBuilder

MAX_CALLS: Final = 128
"""Tool calls of one reply that are kept. The toolbox answers those that it does not run with errors, so without a limit a model
that repeats a call thousands of times would make the next prompt much more expensive than its reply."""


class ReplyReader:
    """Assemble a reply and filter its text.

    ``started`` is True once the model has written anything. ``passed_on`` is what a client reads of the last delta beside text.
    """

    passed_on: Sequence[RefusalDelta | ToolCallDelta] = ()

    def __init__(self, show: TextVisibility, *, begins_thinking: bool = False) -> None:
        self.started = False
        self._builder = ReplyBuilder()
        self._think_filter = ThinkFilter(begins_thinking=begins_thinking)
        self._show_filter = ShowFilter(show)
        self._text: list[str] = []

    def add(self, delta: ChatDelta) -> str:
        """Add a piece of the reply. Return the text that can be shown now."""
        self._builder.add(delta)
        self.started = self.started or bool(delta.content or delta.refusal or delta.tool_calls)
        written = delta.content + delta.refusal
        return self._show(self._think_filter.feed(written)) if written else ""

    def end(self) -> str:
        """Return the rest of the text that can be shown, once the reply has ended."""
        return self._show(self._think_filter.flush()) + self._show_filter.flush()

    def _show(self, text: str) -> str:
        if not text:
            return ""
        self._text.append(text)
        return self._show_filter.feed(text)

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
