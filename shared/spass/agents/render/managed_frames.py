"""Render the run of a managed agent as frames: OpenAI's chunks, with the agent's tool calls and their results as named events.

Grammar: ``(chunk | tool_calls | tool_result)* last-chunk [DONE]``, or at any point ``error``. Status lines and the calls within
a call are not shown. The chunks have the text of all steps: what a client collects is what the mailbox stores. The fields are in
docs/managed.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from spass.agents.render.chunks import Chunk, chunk_head
from spass.agents.render.events import StreamName, split_token
from spass.core import events
from spass.core.cost import cost_json
from spass.core.ids import RequestId, SessionId
from spass.core.json import dump_line
from spass.core.messages import FinishReason, Json, ToolCall, ToolCallDelta
from spass.core.run_result import AgentRun, RunResult
from spass.journal.frames import DONE, Frame, json_frame
from spass.tools.base import arguments_for_display

_FLAGS: Final = {
    FinishReason.MAX_TURNS: "max_turns_exceeded",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.DEADLINE: "deadline",
}
"""The flag of the last chunk of a run that ended early. Its finish reason is ``stop``, because OpenAI's format has no other."""
_MAX_CALLS_BYTES: Final = 200_000
"""Bytes of the calls in one event. More calls are several events, because an event must fit in an item of the table."""


@dataclass(frozen=True, slots=True)
class ManagedFormat:
    """The format of the run ``run_id``, which was created in the second ``created``."""

    run_id: str
    created: int

    def renderer(
        self, request_id: RequestId, _session: SessionId | None, _stream: StreamName | None, run: AgentRun, /
    ) -> "ManagedFrames":
        """See ``RunFormat.renderer``."""
        return ManagedFrames(chunk_head(self.run_id, self.created, run.model), request_id)


class ManagedFrames:
    """Render the events of one run as frames. See ``StreamRenderer``. ``head`` has the run's id and second."""

    def __init__(self, head: Chunk, request_id: RequestId) -> None:
        self._head = head
        self._request_id = request_id
        before, mark, after = dump_line(self._chunk({"content": ""})).partition('"content":"')
        self._before_text, self._after_text = before + mark, after

    def write(self, event: events.Event) -> Sequence[Frame]:
        match event:
            case events.Token(text=text):
                return [self._token(piece) for piece in split_token(text)] if text else ()
            case events.InferenceFinished(message=message) | events.MessageWritten(message=message):
                return [*_render_calls(message.tool_calls)]
            case events.ToolCallFinished(outcome=outcome):
                result: Json = {
                    "tool_name": outcome.call.name,
                    "output": outcome.message.content,
                    "call_id": outcome.call.id,
                    "success": outcome.ok,
                }
                return [json_frame(result, "tool_result")]
            case events.TurnStarted() | events.InferenceStarted() | events.RefusalDelta() | ToolCallDelta():
                return ()
            case events.ToolCallStarted() | events.ToolProgress() | events.Nested() | events.ResultRecorded() | events.Status():
                return ()
            case events.TurnFinished() | events.Failed():
                return ()
            case _:
                assert_never(event)

    def move(self, _successor: SessionId, /) -> Sequence[Frame]:
        """Return no frame: the stream does not name the agent's session."""
        return ()

    def end(self, outcome: RunResult) -> Sequence[Frame]:
        """Return the end of a run that succeeded: the last chunk, with usage and flags, and ``[DONE]``."""
        flag = _FLAGS.get(outcome.finish_reason)
        usage: Json = {
            "prompt_tokens": outcome.usage.prompt_tokens,
            "completion_tokens": outcome.usage.completion_tokens,
            "total_tokens": outcome.usage.total_tokens,
            "cost": cost_json(outcome.cost),
        }
        last = self._chunk({}, "stop" if flag else outcome.finish_reason.value) | {"usage": usage}
        return json_frame(last | {flag: True} if flag else last), DONE

    def fail(self, error: Mapping[str, Json]) -> Sequence[Frame]:
        return failed_run_frames(error, self._request_id)

    def _token(self, text: str) -> Frame:
        return Frame(dump_line(text)[1:-1], self._before_text, self._after_text)

    def _chunk(self, delta: Mapping[str, Json], reason: str | None = None) -> dict[str, Json]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def failed_run_frames(error: Mapping[str, Json], request_id: RequestId) -> Sequence[Frame]:
    """Return the end of the stream of a run that failed: the envelope of all errors, whose ``error`` is given."""
    return (json_frame({"error": error, "request_id": request_id}, "error"),)


def _render_calls(calls: Sequence[ToolCall]) -> Iterator[Frame]:
    """Yield the calls of one step as one event, or as several if they are very long."""
    rendered: list[Json] = []
    size = 0
    for call in calls:
        line: Json = {"id": call.id, "tool_name": call.name, "arguments": _arguments(call)}
        added = len(dump_line(line).encode())
        if rendered and size + added > _MAX_CALLS_BYTES:
            yield _calls_frame(rendered)
            rendered, size = [], 0
        rendered.append(line)
        size += added
    if rendered:
        yield _calls_frame(rendered)


def _calls_frame(calls: Sequence[Json]) -> Frame:
    return json_frame({"calls": calls}, "tool_calls")


def _arguments(call: ToolCall) -> str:
    """Return the arguments as the model wrote them. What cannot be read as arguments is cut, as in every stream."""
    shown = arguments_for_display(call.arguments)
    return shown if isinstance(shown, str) else call.arguments
