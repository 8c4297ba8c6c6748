"""Collect a stream of chunks as a client does, without the gateway's own code."""

import json
from collections.abc import Iterable
from typing import Any

from spass.agents.render.chunks import Chunk
from spass.completions.responses import ChatCompletion
from spass.journal.frames import DONE, Frame


def read_chunks(frames: Iterable[Frame]) -> list[Any]:
    """Return the chunks in ``frames``."""
    return [json.loads(frame.data) for frame in frames if frame is not DONE]


def collect_chunks(chunks: Iterable[Chunk]) -> ChatCompletion:
    """Return the blocking answer that the chunks of a finished stream make."""
    answer: dict[str, Any] = {}
    texts: dict[str, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        answer |= {name: chunk[name] for name in ("id", "created", "model")} | {"usage": chunk.get("usage")}
        choices: Any = chunk["choices"]
        for choice in choices:
            reason = choice["finish_reason"] or reason
            for name in ("content", "refusal"):
                if (text := choice["delta"].get(name)) is not None:
                    texts[name] = texts.get(name, "") + text
            for piece in choice["delta"].get("tool_calls", ()):
                _add_call(calls, piece)
    message = {"content": texts.get("content"), "refusal": texts.get("refusal"), "tool_calls": [*calls.values()]}
    return ChatCompletion.model_validate(answer | {"choices": [{"index": 0, "message": message, "finish_reason": reason}]})


def _add_call(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    index, function = piece["index"], piece["function"]
    if "id" in piece:
        assert index == len(calls), "calls are numbered from 0, and only their first piece has an id"
        calls[index] = {"id": piece["id"], "type": piece["type"], "function": dict(function)}
    else:
        assert "name" not in function
        calls[index]["function"]["arguments"] += function["arguments"]
