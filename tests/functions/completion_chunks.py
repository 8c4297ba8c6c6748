"""The chunks of streamed chat completions."""

import json
from collections.abc import Sequence
from typing import Any

from tests.functions.gateway import Reply


def chunks_of(reply: Reply) -> list[Any]:
    """Return the chunks of a stream that has ended with ``[DONE]``."""
    assert reply.status == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, last = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(chunks: Sequence[Any]) -> str:
    """Return the text that the chunks add up to."""
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
