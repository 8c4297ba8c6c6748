"""The stream of a managed run as a scripted gateway sends it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spass.testing.http_server import HttpAnswer

Frame: TypeAlias = tuple[str | None, Mapping[str, Any]]
"""The name of an event, or None for a chunk, and its data."""

RUN = "run_1"


def chunk(delta: Mapping[str, str], reason: str | None = None, **more: object) -> Frame:
    """Return a chunk in OpenAI's format."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    head = {"id": RUN, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return None, {**head, "choices": [choice], **more}


CALL = {"id": "call_1", "tool_name": "calculator", "arguments": '{"expression":"2+2"}'}
RESULT = {"tool_name": "calculator", "output": "4", "call_id": "call_1", "success": True}
FRAMES: Sequence[Frame] = (
    chunk({"content": "Let me compute. "}),
    ("tool_calls", {"calls": [CALL]}),
    ("tool_result", RESULT),
    chunk({"content": "It is "}),
    chunk({"content": "4."}),
    chunk({}, "stop", usage={"total_tokens": 7}),
)


def stream_answer(frames: Sequence[Frame], *, is_whole: bool = True, attempt: int = 1, first: int = 1) -> HttpAnswer:
    """Return a stream of ``frames`` with the ids from ``first`` on. One that is not whole breaks off after them."""
    return HttpAnswer(_render(frames, attempt, first, is_whole), content_type="text/event-stream; charset=utf-8")


def _render(frames: Sequence[Frame], attempt: int, first: int, is_whole: bool) -> Iterator[bytes]:
    yield b"retry: 1000\n\n: keep-alive\n\n"
    for number, (name, data) in enumerate(frames, first):
        event = f"event: {name}\n" if name else ""
        yield f"id: {attempt}-{number}\n{event}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
    if is_whole:
        yield f"id: {attempt}-{first + len(frames)}\ndata: [DONE]\n\n".encode()
