"""Render an answer as OpenAI's chunks: the events of an answer as frames while it arrives, or a stored answer once more."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias, assert_never, cast

from spass.core import events
from spass.core.cost import Cost, cost_json
from spass.core.json import dump_line
from spass.core.messages import FinishReason, Json, TokenUsage, ToolCallDelta
from spass.journal.frames import Frame, json_frame

Chunk: TypeAlias = dict[str, Json]
"""One ``chat.completion.chunk``."""


class ChunkWriter:
    """Render the events of one answer as frames, whose chunks begin with ``head``. The last chunk always has the usage and the
    cost: with ``include_usage`` a separate chunk, as in OpenAI's answers; without it, the chunk with the finish reason."""

    def __init__(self, head: Chunk, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._started = False
        # The chunks of one answer differ only in their text, so the JSON around it is written once.
        before, mark, self._after_text = dump_line(self._chunk({"content": ""})).partition('"content":"')
        self._before_text = before + mark

    def write(self, event: events.Event) -> Iterator[Frame]:
        """Yield the chunks of one event. Most events have none: a client sees only text, refusals and calls of its own tools.
        An empty token begins the answer."""
        match event:
            case events.Token(text=text):
                yield from self._begin("")
                if text:
                    yield Frame(dump_line(text)[1:-1], self._before_text, self._after_text)
            case events.RefusalDelta(text=text):
                yield from self._begin(None)
                yield json_frame(self._chunk({"refusal": text}))
            case ToolCallDelta():
                yield from self._begin(None)
                yield json_frame(self._chunk({"tool_calls": [_render_call(event)]}))
            case events.TurnFinished():
                yield from self._begin("")
                yield from self._end(event)
            case events.TurnStarted() | events.InferenceStarted() | events.InferenceFinished() | events.MessageWritten():
                pass
            case events.ResultRecorded() | events.Status() | events.ToolCallStarted() | events.ToolProgress():
                pass
            case events.ToolCallFinished() | events.Nested() | events.Failed():
                pass
            case _:
                assert_never(event)

    def _begin(self, content: str | None) -> Iterator[Frame]:
        if not self._started:
            self._started = True
            yield json_frame(self._chunk({"role": "assistant", "content": content, "refusal": None}))

    def _end(self, finished: events.TurnFinished) -> Iterator[Frame]:
        last = self._chunk({}, finished.finish_reason)
        if self._include_usage:
            yield json_frame(last)
            last = {**self._head, "choices": []}
        yield json_frame({**last, "usage": render_usage(finished.usage, finished.cost)})

    def _chunk(self, delta: Mapping[str, Json], reason: FinishReason | None = None) -> Chunk:
        chunk: Chunk = {**self._head, "choices": [_choice(delta, reason.value if reason else None)]}
        return {**chunk, "usage": None} if self._include_usage else chunk


def render_usage(usage: TokenUsage, cost: Cost) -> dict[str, Json]:
    """Render token counts and cost. ``cost`` is the shortest number that reads as the exact amount in US dollars."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cost": float(cost.usd),
        "cost_details": cost_json(cost),
    }


def replay_chunks(answer: Mapping[str, Json], *, include_usage: bool) -> Iterator[Chunk]:
    """Yield a stored blocking answer as a stream."""
    head = chunk_head(answer["id"], answer["created"], answer["model"])
    choice = cast("list[dict[str, Json]]", answer["choices"])[0]
    message = cast("dict[str, Json]", choice["message"])
    calls = [{"index": index, **call} for index, call in enumerate(cast("list[dict[str, Json]]", message.get("tool_calls", [])))]
    first: dict[str, Json] = {**message, "tool_calls": calls} if calls else message
    for delta, reason in ((first, None), ({}, choice["finish_reason"])):
        chunk: Chunk = {**head, "choices": [_choice(delta, reason)]}
        if include_usage:
            yield {**chunk, "usage": None}
        else:
            yield chunk if reason is None else {**chunk, "usage": answer["usage"]}
    if include_usage:
        yield {**head, "choices": [], "usage": answer["usage"]}


def chunk_head(answer_id: Json, created: Json, model: Json) -> Chunk:
    """Return the fields that all chunks of an answer share. ``created`` is in seconds since 1970."""
    return {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}


def _choice(delta: Mapping[str, Json], reason: Json) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _render_call(piece: ToolCallDelta) -> Json:
    function: dict[str, Json] = {"arguments": piece.arguments}
    if piece.name is None:
        return {"index": piece.index, "function": function}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": {"name": piece.name, **function}}
