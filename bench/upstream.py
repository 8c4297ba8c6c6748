"""An upstream that answers immediately, and a minimal proxy, against which the gateway is measured."""

import asyncio
import base64
import json
import os
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import numpy as np
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Four."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }
).encode()


CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "2+2"}'},
}
CALL_MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CALL_ANSWER = json.dumps(
    {**json.loads(ANSWER), "choices": [{"index": 0, "message": CALL_MESSAGE, "finish_reason": "tool_calls"}]}
).encode()

PIECES = ("Four", ".", *(f" Piece {number} of it." for number in range(1, 11)))[: int(os.environ.get("PIECES", "12"))]
PAUSE = float(os.environ.get("PAUSE", "0.002"))
"""Seconds between the pieces of a stream."""
STAMP = bool(os.environ.get("STAMP"))
"""Whether the first piece of a stream contains the time at which it is sent, in seconds of the monotonic clock."""


async def answer(request: Request) -> Response:
    """Answer immediately, or after ``ANSWER_AFTER`` seconds. Stream a few words at a time, with pauses. A model that is offered
    tools first calls the calculator."""
    asked = json.loads(await request.body())
    if after := os.environ.get("ANSWER_AFTER"):
        await asyncio.sleep(float(after))
    calls_tool = bool(asked.get("tools")) and asked["messages"][-1]["role"] != "tool"
    if not asked.get("stream"):
        return Response(CALL_ANSWER if calls_tool else ANSWER, media_type="application/json")
    return StreamingResponse(_call() if calls_tool else _pieces(), media_type="text/event-stream")


async def _pieces() -> AsyncIterator[bytes]:
    yield _event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for number, text in enumerate(PIECES):
        if number and PAUSE:
            await asyncio.sleep(PAUSE)
        content = f"{text} at {time.monotonic():.6f} " if STAMP and not number else text
        yield _event([{"index": 0, "delta": {"content": content}, "finish_reason": None}])
    yield _end("stop")


async def _call() -> AsyncIterator[bytes]:
    yield _event([{"index": 0, "delta": CALL_MESSAGE, "finish_reason": None}])
    yield _end("tool_calls")


def _end(reason: str) -> bytes:
    finish = _event([{"index": 0, "delta": {}, "finish_reason": reason}])
    usage = _event([], usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11})
    return finish + usage + b"data: [DONE]\n\n"


def _event(choices: list[dict[str, object]], **more: object) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench-model"}
    return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"


def vector(text: str) -> str:
    """Return a vector of 768 numbers that depends only on the text, in base64 as in OpenAI's format."""
    rows = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(768, dtype=np.float32)
    return base64.b64encode(rows.tobytes()).decode()


async def embed(request: Request) -> Response:
    asked = await request.json()
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    data = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(texts)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return JSONResponse({"object": "list", "model": asked["model"], "data": data, "usage": usage})


async def forward(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    asked = client.build_request(
        "POST",
        "/v1/chat/completions",
        content=await request.body(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer x"},
    )
    reply = await client.send(asked, stream=True)
    kind = reply.headers["content-type"]
    if kind.startswith("text/event-stream"):
        return StreamingResponse(reply.aiter_raw(), reply.status_code, media_type=kind, background=BackgroundTask(reply.aclose))
    return Response(await reply.aread(), reply.status_code, media_type=kind)


@asynccontextmanager
async def with_client(app: Starlette) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"]) as client:
        app.state.client = client
        yield


upstream = Starlette(
    routes=[
        Route("/v1/chat/completions", answer, methods=["POST"]),
        Route("/v1/embeddings", embed, methods=["POST"]),
    ]
)
passthrough = Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=with_client)
