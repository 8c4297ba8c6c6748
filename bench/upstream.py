"""An upstream that answers at once, and the smallest honest proxy in front of one: what the gateway is measured against."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
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


async def answer(request: Request) -> Response:
    await request.body()
    return Response(ANSWER, media_type="application/json")


async def forward(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    reply = await client.post(
        "/v1/chat/completions",
        content=await request.body(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer x"},
    )
    return Response(reply.content, reply.status_code, media_type="application/json")


@asynccontextmanager
async def with_client(app: Starlette) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"]) as client:
        app.state.client = client
        yield


upstream = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
passthrough = Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=with_client)
