"""Render OpenAI's chat answers: a stream of chunks, and the blocking answer, which collects that stream."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from spass.completions.answers import ChatCompletion
from spass.core.cost import Cost
from spass.core.events import ToolCallDelta
from spass.core.ids import new_id
from spass.core.messages import FinishReason, Json, TokenUsage
from spass.llm.types import ChatDelta, ReplyBuilder
from spass.metering.pricing import decimal_text

Chunk: TypeAlias = dict[str, Json]
"""One ``chat.completion.chunk``."""


class ChunkWriter:
    """Render the deltas of one answer. The last chunk always has the usage and the cost: with ``include_usage`` a separate chunk,
    as in OpenAI's answers; without it, the chunk with the finish reason."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._head: Chunk = {
            "id": new_id("chatcmpl").replace("_", "-", 1),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._include_usage = include_usage
        self._started = False
        self._known_calls: set[int] = set()

    def write(self, delta: ChatDelta) -> Iterator[Chunk]:
        """Yield the chunks of one delta."""
        yield from self._begin(delta)
        if delta.content:
            yield self._chunk({"content": delta.content})
        if delta.refusal:
            yield self._chunk({"refusal": delta.refusal})
        if delta.tool_calls:
            yield self._chunk({"tool_calls": [self._tool_call(piece) for piece in delta.tool_calls]})

    def end(self, reason: FinishReason, usage: TokenUsage, cost: Cost) -> Iterator[Chunk]:
        """Yield the last chunks. ``cost`` is that of the whole request."""
        yield from self._begin(ChatDelta())
        last = self._chunk({}, reason)
        if self._include_usage:
            yield last
            last = {**self._head, "choices": []}
        yield {**last, "usage": _usage(usage, cost)}

    def _begin(self, first: ChatDelta) -> Iterator[Chunk]:
        if not self._started:
            self._started = True
            has_no_text = (first.tool_calls or first.refusal) and not first.content
            yield self._chunk({"role": "assistant", "content": None if has_no_text else "", "refusal": None})

    def _chunk(self, delta: Mapping[str, Json], reason: FinishReason | None = None) -> Chunk:
        choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason.value if reason else None}
        chunk: Chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _tool_call(self, piece: ToolCallDelta) -> Json:
        function: dict[str, Json] = {"arguments": piece.arguments}
        if piece.index in self._known_calls:
            return {"index": piece.index, "function": function}
        self._known_calls.add(piece.index)
        call_id = piece.id or f"call_{piece.index}"
        return {"index": piece.index, "id": call_id, "type": "function", "function": {"name": piece.name or "", **function}}


def _usage(usage: TokenUsage, cost: Cost) -> Json:
    """Render token counts and cost. ``cost`` is the shortest number that reads as the exact amount in US dollars."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cost": float(cost.usd),
        "cost_details": {
            "eur": decimal_text(cost.eur),
            "usd": decimal_text(cost.usd),
            "source": cost.source.value,
            "sub_calls": cost.sub_calls,
        },
    }


def collect_chunks(chunks: Iterable[Chunk]) -> ChatCompletion:
    """Return the blocking answer for a finished stream of chunks."""
    head: Chunk = {}
    usage: Json = None
    builder = ReplyBuilder()
    for chunk in chunks:
        head = {name: chunk[name] for name in ("id", "created", "model")}
        usage = chunk.get("usage")
        for choice in cast("list[dict[str, Json]]", chunk["choices"]):
            builder.add(_read_choice(choice))
    reply = builder.reply
    message, refusal = reply.message, reply.refusal or None
    calls: Json = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    has_no_text = not message.content and (calls or refusal)
    body: Json = {"content": None if has_no_text else message.content, "refusal": refusal, "tool_calls": calls}
    choice_body: Json = {"index": 0, "message": body, "finish_reason": reply.finish_reason.value}
    return ChatCompletion.model_validate({**head, "choices": [choice_body], "usage": usage})


def _read_choice(choice: Mapping[str, Json]) -> ChatDelta:
    """Return the delta that ``ChunkWriter`` rendered as ``choice``."""
    delta, reason = cast("dict[str, Any]", choice["delta"]), cast("str | None", choice["finish_reason"])
    calls = [
        ToolCallDelta(call["index"], call.get("id"), call["function"].get("name"), call["function"]["arguments"])
        for call in delta.get("tool_calls", ())
    ]
    return ChatDelta(
        delta.get("content") or "",
        tuple(calls),
        FinishReason(reason) if reason else None,
        refusal=delta.get("refusal") or "",
    )


def replay_chunks(answer: Mapping[str, Json], *, include_usage: bool) -> Iterator[Chunk]:
    """Yield a stored answer as a stream. ``collect_chunks`` makes the same answer of it."""
    head = {"id": answer["id"], "object": "chat.completion.chunk", "created": answer["created"], "model": answer["model"]}
    choice = cast("list[dict[str, Json]]", answer["choices"])[0]
    message = cast("dict[str, Json]", choice["message"])
    calls = [{"index": index, **call} for index, call in enumerate(cast("list[dict[str, Json]]", message.get("tool_calls", [])))]
    first: dict[str, Json] = {**message, "tool_calls": calls} if calls else message
    for delta, reason in ((first, None), ({}, choice["finish_reason"])):
        chunk: Chunk = {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        if include_usage:
            yield {**chunk, "usage": None}
        else:
            yield chunk if reason is None else {**chunk, "usage": answer["usage"]}
    if include_usage:
        yield {**head, "choices": [], "usage": answer["usage"]}
