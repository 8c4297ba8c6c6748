"""The HTTP API of the stand-in: `/v1/chat/completions` and `/v1/models`."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from local.standin.wire import Completion, as_body, as_events, complete


async def chat_completions(request: Request) -> Response:
    try:
        body = json.loads(await request.body())
    except ValueError:
        return _refusal("The body is not JSON.")
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        return _refusal("'messages' must be a list with at least one message.")
    completion = complete(body)
    if body.get("stream"):
        options = body.get("stream_options")
        include_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        return StreamingResponse(_events(completion, include_usage=include_usage), media_type="text/event-stream")
    return JSONResponse(as_body(completion))


async def models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "stand-in", "object": "model", "created": 0, "owned_by": "spass"}]})


async def _events(completion: Completion, *, include_usage: bool) -> AsyncIterator[str]:
    for event in as_events(completion, include_usage=include_usage):
        yield event
        if completion.pause_seconds:
            await asyncio.sleep(completion.pause_seconds)


def _refusal(message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request"}
    return JSONResponse({"error": error}, status_code=400)


app = Starlette(routes=[Route("/v1/chat/completions", chat_completions, methods=["POST"]), Route("/v1/models", models)])
