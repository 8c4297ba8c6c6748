"""Render the run of an agent as a stream of events: the events while they happen, or a recorded outcome once more.

Grammar: ``planning (status_update | token | tool_call | approval)* complete usage done``, or at any point ``error error``. There
is exactly one end. The tokens of the last step, joined, are the answer. The fields are in docs/streaming.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Literal, TypeAlias, assert_never

from spass.agents.responses import Reply, ask_metadata
from spass.core import events
from spass.core.cost import cost_json
from spass.core.ids import RequestId, SessionId
from spass.core.messages import FinishReason, Json, ToolCall, ToolCallDelta
from spass.core.run_result import RunResult, ToolRecord
from spass.tools.base import arguments_for_display

StreamEvent: TypeAlias = dict[str, Json]
"""One event of the stream, as JSON."""

_PLANNING: Final = "{} begins to work."
_MOVING: Final = "The session became too long. {} continues in a new one that begins with a summary."
_MAX_NAME: Final = 64  # characters of the name of a tool, which a model may have invented
_MAX_PROGRESS: Final = 200  # characters of what a tool reports, which its event has as a whole
_ENDS: Final = {
    FinishReason.LENGTH: "{agent} used up the tokens of its reply",
    FinishReason.CONTENT_FILTER: "A filter ended the reply of {agent}",
    FinishReason.MAX_TURNS: "{agent} used up its model calls",
    FinishReason.CANCELLED: "{agent} was stopped",
    FinishReason.DEADLINE: "{agent} used up its time",
}
_MAX_TOKEN_BYTES: Final = 32 * 1024
_DONE: Final = ("request_id", "agent", "model", "session_id", "turns", "finish_reason", "compaction", "metadata")
_DONE_MESSAGE: Final = ("id", "seq", "created_at")


@dataclass(frozen=True, slots=True)
class StreamName:
    """The name of a stream that can be followed, and the number of the attempt that writes it."""

    message_id: str
    attempt: int


@dataclass(slots=True)
class EventWriter:
    """Render the items of one run of ``agent``. ``session_id`` is the session to which the request was sent, or None. ``stream``
    is the name of a stream that can be followed. With ``shows_kind``, the last event has the agent's kind and the metadata of
    ``AskAnswer``."""

    request_id: RequestId
    agent: str
    session_id: SessionId | None = None
    _: KW_ONLY
    stream: StreamName | None = None
    shows_kind: bool = False
    _calls: int = field(default=0, init=False)  # of the agent's last message
    _started: int = field(default=0, init=False)  # calls among them that have started

    def write(self, item: events.Event | RunResult) -> Iterator[StreamEvent]:
        """Yield the events of the stream for one event of the run, or for its outcome, which ends the stream."""
        match item:
            case events.Token():
                for piece in split_token(item.text):
                    yield {"type": "token", "content": piece, "step": item.step}
            case events.TurnStarted():
                yield self._planning(self.request_id, self.session_id, _PLANNING.format(self.agent))
            case events.InferenceFinished(message=message) | events.MessageWritten(message=message):
                self._calls, self._started = len(message.tool_calls), 0
            case events.ToolCallStarted(call=call):
                self._started += 1
                yield _started_call(call, _calling_detail(self.agent, call.name, self._started, self._calls))
            case events.ToolProgress():
                yield _progress(item)
            case events.ToolCallFinished(outcome=outcome):
                yield from _finished_call(ToolRecord.of(outcome))
            case events.Nested():
                yield from _nested(item)
            case events.Status(detail=detail):
                yield _status("executing", detail)
            case RunResult():
                yield from self._end(item)
            case (
                events.InferenceStarted()
                | events.RefusalDelta()
                | ToolCallDelta()
                | events.ResultRecorded()
                | events.TurnFinished()
                | events.Failed()
            ):
                pass
            case _:
                assert_never(item)

    def move(self, successor: SessionId) -> StreamEvent:
        """Return the event that names the session in which the turn goes on after a compaction."""
        self.session_id = successor
        return self._planning(self.request_id, successor, _MOVING.format(self.agent))

    def replay(self, outcome: RunResult) -> Iterator[StreamEvent]:
        """Yield the stream of a recorded outcome. It begins as the first one did: with the session before a compaction."""
        session = outcome.compaction.source if outcome.compaction is not None else outcome.session_id
        yield self._planning(outcome.run.request_id, session, _PLANNING.format(outcome.run.agent))
        for tool in outcome.tools:
            yield from _finished_call(tool)
        yield from self.write(events.Token(outcome.content, max(1, outcome.turns)))
        yield from self._end(outcome)

    def fail(self, error: Mapping[str, Json]) -> Iterator[StreamEvent]:
        """Yield the end of a stream that failed. ``error`` is that of the envelope of all errors."""
        yield from render_failure(error, self.request_id)

    def _planning(self, request_id: RequestId, session_id: SessionId | None, detail: str) -> StreamEvent:
        planning: StreamEvent = {**_status("planning", detail), "request_id": request_id, "session_id": session_id}
        if self.stream is not None:
            planning |= {"message_id": self.stream.message_id, "attempt": self.stream.attempt}
        return planning

    def _end(self, outcome: RunResult) -> Iterator[StreamEvent]:
        reply = Reply.of(outcome)
        fields, message = reply.to_dict(), reply.message.to_dict()
        yield _status("complete", _end_detail(outcome))
        cost = cost_json(outcome.cost)
        yield {"type": "usage", "usage": fields["usage"], "cost_usd": float(outcome.cost.usd), "cost": cost}
        done: StreamEvent = {"type": "done", **{name: fields[name] for name in _DONE}}
        done["message"] = {name: message[name] for name in _DONE_MESSAGE}
        yield {**done, "kind": outcome.run.kind, "metadata": ask_metadata(outcome)} if self.shows_kind else done


def render_failure(error: Mapping[str, Json], request_id: str) -> tuple[StreamEvent, StreamEvent]:
    """Return the end of a stream that failed. ``error`` is that of the envelope of all errors."""
    return (
        _status("error", str(error["message"])),
        {"type": "error", "error": error, "request_id": request_id},
    )


def _status(status: Literal["planning", "executing", "complete", "error"], detail: str) -> StreamEvent:
    return {"type": "status_update", "status": status, "detail": detail}


def _progress(event: events.ToolProgress) -> StreamEvent:
    detail = _shorten(event.detail, _MAX_PROGRESS)
    return {**_status("executing", detail), "tool_call_id": event.call_id, "progress": event.detail}


def _nested(nested: events.Nested) -> Iterator[StreamEvent]:
    agent, parent_id = nested.agent, nested.parent_id
    match nested.event:
        case events.ToolCallStarted(call=call):
            yield _started_call(call, _calling_detail(agent, call.name), agent, parent_id)
        case events.ToolProgress():
            yield _progress(nested.event)
        case events.ToolCallFinished(outcome=outcome):
            yield from _finished_call(ToolRecord.of(outcome), agent, parent_id)
        case _:
            assert_never(nested.event)


def _started_call(call: ToolCall, detail: str, agent: str | None = None, parent_id: str | None = None) -> StreamEvent:
    """Return the event of a call that starts. ``agent`` makes it within the call ``parent_id``; both are None for the turn's own
    calls."""
    started: Json = {
        "id": call.id,
        "tool": call.name,
        "args": arguments_for_display(call.arguments),
        "agent": agent,
        "parent_id": parent_id,
    }
    return {**_status("executing", detail), "tool_call": started}


def _finished_call(tool: ToolRecord, agent: str | None = None, parent_id: str | None = None) -> Iterator[StreamEvent]:
    yield _tool_call(tool, agent, parent_id)
    if tool.approval is not None:
        yield {"type": "approval", "approval": tool.approval}


def _tool_call(tool: ToolRecord, agent: str | None = None, parent_id: str | None = None) -> StreamEvent:
    return {
        "type": "tool_call",
        "id": tool.id,
        "tool": tool.name,
        "args": tool.arguments,
        "result": tool.result,
        "ok": tool.ok,
        "duration_ms": tool.duration_ms,
        "agent": agent,
        "parent_id": parent_id,
        "rich": [*tool.rich] or None,
    }


def split_token(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces of at most 32 KiB of UTF-8, without splitting a character."""
    if 4 * len(text) <= _MAX_TOKEN_BYTES:
        yield text
        return
    data, start = text.encode("utf-8", "replace"), 0
    while start < len(data):
        piece = data[start : start + _MAX_TOKEN_BYTES].decode("utf-8", "ignore")
        yield piece
        start += len(piece.encode())


def _calling_detail(agent: str, tool: str, number: int = 1, of: int = 1) -> str:
    """Return the text for the start of a call: ``number`` of the calls that the agent makes at the same time."""
    place = f" (call {number} of {of})" if number <= of > 1 else ""
    return f"{agent} uses {_shorten(tool, _MAX_NAME)}{place}."


def _end_detail(outcome: RunResult) -> str:
    """Return the text for the end of a run that succeeded: how it ended, and what it took."""
    end = _ENDS.get(outcome.finish_reason, "{agent} is done").format(agent=outcome.run.agent)
    spent = f"{end}: {_count(outcome.turns, 'model call')}, {_count(len(outcome.tools), 'tool call')}."
    waiting = sum(tool.approval is not None for tool in outcome.tools)
    if not waiting:
        return spent
    return f"{spent} {_count(waiting, 'call')} {'waits' if waiting == 1 else 'wait'} for a decision."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
