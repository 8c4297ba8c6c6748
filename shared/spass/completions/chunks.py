"""Render OpenAI's chat answers: a stream of chunks, and the blocking answer, which collects that stream."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Required, TypeAlias, TypedDict, cast

from spass.completions.answers import ChatCompletion
from spass.core.cost import Cost
from spass.core.ids import new_id
from spass.core.messages import FinishReason, Json, TokenUsage
from spass.llm.types import ChatDelta, ToolCallDelta
from spass.metering.pricing import decimal_text

Chunk: TypeAlias = dict[str, Json]
"""One ``chat.completion.chunk``."""


class ChunkWriter:
    """Render the deltas of one answer. With ``include_usage`` a separate last chunk has the usage, as in OpenAI's answers;
    without it, the chunk with the finish reason has it. So the cost is always in the last chunk."""

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
        totals = _usage(usage, cost)
        last = self._chunk({}, reason)
        if not self._include_usage:
            yield {**last, "usage": totals}
        else:
            yield last
            yield {**self._head, "choices": [], "usage": totals}

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
        identity = piece.id or f"call_{piece.index}"
        return {"index": piece.index, "id": identity, "type": "function", "function": {"name": piece.name or "", **function}}


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
    texts: list[str] = []
    refusals: list[str] = []
    calls: dict[int, _Call] = {}
    reason: Json = None
    usage: Json = None
    for chunk in chunks:
        head = {name: chunk[name] for name in ("id", "created", "model")}
        usage = chunk.get("usage")
        for choice in cast("list[dict[str, Json]]", chunk["choices"]):
            delta = cast("_Delta", choice["delta"])
            texts.append(delta.get("content") or "")
            refusals.append(delta.get("refusal") or "")
            for piece in delta.get("tool_calls", ()):
                calls.setdefault(piece["index"], _Call()).add(piece)
            reason = choice["finish_reason"] or reason
    text, refusal = "".join(texts), "".join(refusals) or None
    has_no_text = not text and (calls or refusal)
    tool_calls = [call.build() for _, call in sorted(calls.items())]
    message: Json = {"content": None if has_no_text else text, "refusal": refusal, "tool_calls": tool_calls}
    choice_json: Json = {"index": 0, "message": message, "finish_reason": reason}
    return ChatCompletion.model_validate({**head, "choices": [choice_json], "usage": usage})


def replay_chunks(answer: Mapping[str, Json], *, include_usage: bool) -> Iterator[Chunk]:
    """Return a stored answer as a stream; collected, it is ``answer``."""
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


class _Function(TypedDict, total=False):
    name: str
    arguments: Required[str]


class _ChunkToolCall(TypedDict, total=False):
    index: Required[int]
    id: str
    function: Required[_Function]


class _Delta(TypedDict, total=False):
    content: str | None
    refusal: str | None
    tool_calls: list[_ChunkToolCall]


class _Call:
    """Join the chunks of one tool call."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: _ChunkToolCall) -> None:
        self._id = self._id or piece.get("id", "")
        self._name = self._name or piece["function"].get("name", "")
        self._arguments.append(piece["function"]["arguments"])

    def build(self) -> Json:
        return {"id": self._id, "type": "function", "function": {"name": self._name, "arguments": "".join(self._arguments)}}
