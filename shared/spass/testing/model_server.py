"""A scripted model over a loopback socket, in OpenAI's wire format."""

import base64
import json
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

from spass.testing.http_server import HttpAnswer, HttpRequest, RequestHandler, json_answer, serve

Body: TypeAlias = Mapping[str, Any]
"""The JSON object of a request."""

COUNT: Final = object()
"""Count one token for four characters."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The assistant's answer: ``content``, ``tool_calls`` and ``refusal`` of a message in OpenAI's words.

    A streamed answer is sent in ``pieces`` (default: its words), with ``pause`` seconds before each. An answer that is not
    streamed has the same total delay. If ``usage`` is None, no usage is sent.
    """

    message: Body
    finish_reason: str | None = None
    usage: object = COUNT
    pieces: Iterable[str] | None = None
    pause: float = 0.0

    @property
    def reason(self) -> str:
        """Return ``finish_reason``, or what the message implies."""
        return self.finish_reason or ("tool_calls" if self.message.get("tool_calls") else "stop")

    @property
    def texts(self) -> Iterable[str]:
        """Return the content in the pieces in which it is streamed."""
        return self.pieces if self.pieces is not None else re.findall(r"\S+\s*|^\s+$", self.message.get("content") or "")


Script: TypeAlias = Callable[[Body], Completion | HttpAnswer | None]
"""Return the answer to the body of a chat request: a completion, any HTTP answer, or None to close the connection."""

Embed: TypeAlias = Callable[[str], Sequence[float]]


def hashed_vector(text: str) -> Sequence[float]:
    """Return eight numbers from 0 to 1 that depend on the text alone."""
    seed = zlib.crc32(text.encode())
    return [((seed >> shift) & 0xFF) / 256 for shift in range(0, 32, 4)]


def model_handler(script: Script, *, embed: Embed = hashed_vector, get: Callable[[str], object] = lambda _: {}) -> RequestHandler:
    """Return a handler that answers chat completions by ``script`` and embeddings by ``embed``. It answers GET requests with the
    JSON that ``get`` makes of the path."""

    def respond(request: HttpRequest) -> HttpAnswer | None:
        if request.method == "GET":
            return json_answer(get(request.path))
        body: Body = request.json
        if request.path.endswith("/embeddings"):
            return json_answer(_embeddings(body, embed))
        answer = script(body)
        if not isinstance(answer, Completion):
            return answer
        if body.get("stream"):
            return HttpAnswer(_events(body, answer), content_type="text/event-stream")
        time.sleep(answer.pause * sum(1 for _ in answer.texts))
        return json_answer(_completion_body(body, answer))

    return respond


def serve_model(
    script: Script, *, embed: Embed = hashed_vector, get: Callable[[str], object] = lambda _: {}
) -> AbstractContextManager[str]:
    """Serve a ``model_handler`` until the block ends. Yield the server's URL; the base URL of a backend is this and ``/v1``."""
    return serve(model_handler(script, embed=embed, get=get))


def _head(body: Body, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def _usage(body: Body, completion: Completion) -> object:
    if completion.usage is not COUNT:
        return completion.usage
    prompt, completion_tokens = len(json.dumps(body["messages"])) // 4, len(json.dumps(completion.message)) // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion_tokens, "total_tokens": prompt + completion_tokens}


def _completion_body(body: Body, completion: Completion) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **completion.message}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.reason}
    usage = _usage(body, completion)
    return {**_head(body, "chat.completion"), "choices": [choice]} | ({"usage": usage} if usage is not None else {})


def _events(body: Body, completion: Completion) -> Iterator[bytes]:
    for chunk in _chunks(body, completion):
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _chunks(body: Body, completion: Completion) -> Iterator[dict[str, Any]]:
    head = _head(body, "chat.completion.chunk")
    deltas = ((delta, None) for delta in _deltas(completion))
    for delta, reason in chain(deltas, [({}, completion.reason)]):
        time.sleep(completion.pause if delta.get("content") else 0)
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
    usage = _usage(body, completion)
    if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage}


def _deltas(completion: Completion) -> Iterator[dict[str, Any]]:
    message = completion.message
    yield {"role": "assistant", "content": "" if message.get("content") is not None else None}
    for text in completion.texts:
        yield {"content": text}
    if "refusal" in message:
        yield {"refusal": message["refusal"]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]}
        for piece in re.findall(r"(?s).{1,4}", arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _embeddings(body: Body, embed: Embed) -> dict[str, Any]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    is_base64 = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _pack_base64(embed(text)) if is_base64 else embed(text)}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def _pack_base64(row: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode()
