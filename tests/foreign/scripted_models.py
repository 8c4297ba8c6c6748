"""Servers that speak the protocols of the two SDKs and answer by a script."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool of the foreign agent."""

    tool: str
    arguments: Mapping[str, Any]


Turn: TypeAlias = str | Call
"""The next reply of the model: a text, or a tool call."""


@dataclass
class Upstream:
    """The requests that a model got. ``script`` returns its next turn from the messages of a request."""

    script: Callable[[Sequence[Any]], Turn]
    requests: list[Any] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    url: str = ""

    def read(self, request: HttpRequest, key: str) -> Mapping[str, Any]:
        body: Mapping[str, Any] = request.json
        self.requests.append(body)
        self.keys.add(key)
        return body

    def tools(self) -> list[str]:
        """Return the names of the tools of the first request."""
        return [tool.get("name") or tool["function"]["name"] for tool in self.requests[0].get("tools", ())]


def in_order(*turns: Turn) -> Callable[[Sequence[Any]], Turn]:
    """Return a script that takes one turn after the other. The last one repeats."""

    def script(messages: Sequence[Mapping[str, Any]]) -> Turn:
        return turns[min(sum(1 for message in messages if message["role"] == "assistant"), len(turns) - 1)]

    return script


@contextmanager
def openai_model(script: Callable[[Sequence[Any]], Turn]) -> Iterator[Upstream]:
    """Serve OpenAI's chat completions."""
    upstream = Upstream(script)

    def respond(request: HttpRequest) -> HttpAnswer:
        body = upstream.read(request, request.headers["authorization"].removeprefix("Bearer "))
        turn = script(body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": turn if isinstance(turn, str) else None}
        if isinstance(turn, Call):
            function = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
            message["tool_calls"] = [{"id": f"call_{len(upstream.requests)}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(turn, str) else "tool_calls"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        return json_answer({**answer, "usage": usage})

    with serve(respond) as url:
        upstream.url = f"{url}/v1"
        yield upstream


@contextmanager
def anthropic_model(script: Callable[[Sequence[Any]], Turn]) -> Iterator[Upstream]:
    """Serve Anthropic's messages, as streams."""
    upstream = Upstream(script)

    def respond(request: HttpRequest) -> HttpAnswer:
        if not request.path.startswith("/v1/messages") or "count_tokens" in request.path:
            return json_answer({"input_tokens": 10})
        body = upstream.read(request, request.headers["x-api-key"])
        events = _anthropic_events(script(body["messages"]), body["model"])
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return HttpAnswer(text.encode(), content_type="text/event-stream")

    with serve(respond) as url:
        upstream.url = url
        yield upstream


def _anthropic_events(turn: Turn, model: str) -> Iterator[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": 20, "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    if isinstance(turn, str):
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta: dict[str, Any] = {"type": "text_delta", "text": turn}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": turn.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(turn.arguments)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = "end_turn" if isinstance(turn, str) else "tool_use"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}
