"""Put the stand-in's answer into OpenAI's wire format: as one body or as a stream, with its length limit and token counts."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from local.standin.aider import answer_aider, read_aider_prompt
from local.standin.answers import answer
from local.standin.conversation import Conversation, strip_markers, text_of
from local.standin.counting import requested_count
from local.standin.programs import answer_with_code
from local.standin.side_calls import answer_aside
from local.standin.text_protocol import answer_as_text, requested_protocol
from local.standin.tools import choose, fill
from local.standin.words import count_tokens

_TOKENS_PER_MESSAGE: Final = 3
_CREATED: Final = 1_700_000_000  # the same for every answer: the stand-in reads no clock


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete answer, for one body or for many chunks. ``pause_seconds`` is the time between two words of its stream."""

    id: str
    model: str
    content: str | None
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    usage: dict[str, int]
    pause_seconds: float = 0.0


def complete(request: Mapping[str, Any]) -> Completion:
    """Answer a request. The same request always gets the same answer."""
    raw = [message for message in request["messages"] if isinstance(message, Mapping)]
    messages = strip_markers(raw)
    calls: list[dict[str, Any]] = []
    pause_seconds = 0.0
    if prompt := read_aider_prompt(raw):
        text = answer_aider(prompt)
    elif aside := answer_aside(messages):
        text = aside
    elif program := answer_with_code(raw):
        text = program
    elif protocol := requested_protocol(messages):
        text = answer_as_text(protocol, messages)
    else:
        conversation = Conversation.read(messages)
        calls = choose(request, conversation)
        text = "" if calls else _shaped(answer(conversation), request)
        pause_seconds = _pause_seconds(conversation, text)
    content, finish_reason = (None, "tool_calls") if calls else _cut(text, request)
    prompt_tokens = sum(count_tokens(text_of(m)) + _TOKENS_PER_MESSAGE for m in messages) + count_tokens(
        json.dumps(request.get("tools") or "")
    )
    written = count_tokens(content or "") + sum(count_tokens(json.dumps(call["function"])) for call in calls)
    return Completion(
        id=f"chatcmpl-{hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:24]}",
        model=str(request.get("model", "")),
        content=content,
        tool_calls=calls,
        finish_reason=finish_reason,
        usage={"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written},
        pause_seconds=pause_seconds,
    )


def _pause_seconds(conversation: Conversation, text: str) -> float:
    count = requested_count(conversation.question)
    return count.pause_seconds if count and text == count.text else 0.0


def as_body(completion: Completion) -> dict[str, Any]:
    """Return the completion as one JSON body."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.content, "refusal": None}
    if completion.tool_calls:
        message["tool_calls"] = completion.tool_calls
    return {
        "id": completion.id,
        "object": "chat.completion",
        "created": _CREATED,
        "model": completion.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish_reason}],
        "usage": completion.usage,
    }


def as_events(completion: Completion, *, include_usage: bool) -> Iterator[str]:
    """Yield the completion as server-sent events: one word or one piece of arguments per event."""
    yield _event(completion, {"role": "assistant", "content": None if completion.tool_calls else ""})
    for word in re.findall(r"\S+\s*|\s+", completion.content or ""):
        yield _event(completion, {"content": word})
    for at, call in enumerate(completion.tool_calls):
        function = call["function"]
        yield _event(completion, {"tool_calls": [{**call, "index": at, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in re.findall(r"(?s).{1,12}", function["arguments"]):
            yield _event(completion, {"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield _event(completion, {}, finish_reason=completion.finish_reason)
    if include_usage:
        yield _data({**_chunk(completion), "choices": [], "usage": completion.usage})
    yield "data: [DONE]\n\n"


def _event(completion: Completion, delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _data({**_chunk(completion), "choices": [choice]})


def _chunk(completion: Completion) -> dict[str, Any]:
    return {"id": completion.id, "object": "chat.completion.chunk", "created": _CREATED, "model": completion.model}


def _data(chunk: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _shaped(text: str, request: Mapping[str, Any]) -> str:
    """Return the answer in the format of ``response_format``."""
    wanted = request.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if isinstance(wanted, Mapping) and kind == "json_schema":
        described = wanted.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        return json.dumps(fill(schema, text), ensure_ascii=False)
    return json.dumps({"answer": text}, ensure_ascii=False) if kind == "json_object" else text


def _cut(text: str, request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the answer up to the first stop sequence and the token limit, and its finish reason."""
    stop = request.get("stop") or []
    for sequence in stop if isinstance(stop, list) else [stop]:
        text = text.split(sequence, 1)[0] if sequence and isinstance(sequence, str) else text
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if not isinstance(limit, int) or count_tokens(text) <= limit:
        return text, "stop"
    beginning = ""
    for word in re.findall(r"\s*\S+", text):
        if count_tokens(beginning + word) > limit:
            break
        beginning += word
    return beginning, "length"
