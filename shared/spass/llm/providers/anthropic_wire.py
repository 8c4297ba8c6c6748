"""Anthropic's Messages format (https://docs.claude.com/en/api/messages)."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field

from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.llm.types import ChatRequest, NamedTool

DEFAULT_MAX_TOKENS: Final = 8192
"""The format demands a limit; every current model accepts this one."""

_OPENING: Final = "(The conversation so far was summarised.)"
_FOREIGN_IN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_FINISH_REASONS: Final = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
}
"""All others (``end_turn``, ``stop_sequence``, ``pause_turn``) are a stop."""

Tokens = Annotated[int, Field(ge=0, le=10**12)]
Block = dict[str, Json]


class UsagePayload(BaseModel):
    """Token counts; in a stream each event repeats what it knows by then."""

    input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None

    def updated(self, later: "UsagePayload") -> "UsagePayload":
        return self.model_copy(update=later.model_dump(exclude_none=True))

    @property
    def tokens(self) -> TokenUsage:
        """Prompt tokens include those read from and written to the cache."""
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return TokenUsage((self.input_tokens or 0) + cached, self.output_tokens or 0)


class BlockPayload(BaseModel):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, object] = {}

    @property
    def arguments(self) -> str:
        return json.dumps(self.input, ensure_ascii=False)


class MessagePayload(BaseModel):
    """A whole answer, or its beginning in a stream."""

    content: list[BlockPayload]
    stop_reason: str | None = None
    usage: UsagePayload = UsagePayload()


class DeltaPayload(BaseModel):
    """What a content block, or the message, has more."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class EventPayload(BaseModel):
    """Any event of a stream."""

    type: str
    index: Annotated[int, Field(ge=0)] = 0
    message: MessagePayload | None = None
    content_block: BlockPayload | None = None
    delta: DeltaPayload = DeltaPayload()
    usage: UsagePayload | None = None
    error: object = None


def finish_reason(stop_reason: str) -> FinishReason:
    return _FINISH_REASONS.get(stop_reason, FinishReason.STOP)


def messages_body(request: ChatRequest) -> dict[str, Json]:
    """The body of POST /v1/messages."""
    choice = _tool_choice(request)
    fields: dict[str, Json] = {
        "model": request.model,
        "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
        "system": _system(request) or None,
        "messages": _messages(request.messages),
        "tools": _tools(request) or None,
        "tool_choice": choice,
        # OpenAI's scale goes to 2. Newer models refuse the two together, and temperature is the one people mean.
        "temperature": None if request.temperature is None else min(request.temperature, 1.0),
        "top_p": request.top_p if request.temperature is None else None,
        "stop_sequences": [stop for stop in request.stop if stop.strip()] or None,
        "stream": request.stream or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _system(request: ChatRequest) -> str:
    """All system messages, wherever they stood, and what the format has no field for."""
    parts = [message.content for message in request.messages if message.role is Role.SYSTEM]
    wanted = request.response_format or {}
    if wanted.get("type") in {"json_object", "json_schema"}:
        parts.append("Answer with one JSON value and nothing else: no prose, no code fence.")
    schema = wanted.get("json_schema")
    if isinstance(schema, Mapping) and schema.get("schema"):
        parts.append("It must match this JSON Schema: " + json.dumps(schema["schema"], ensure_ascii=False))
    return "\n\n".join(part for part in parts if part.strip())


def _messages(messages: Sequence[Message]) -> list[Json]:
    """The conversation with roles in turns: tool results that follow each other are one user message."""
    turns: list[tuple[str, list[Json]]] = []
    ids = _CallIds()
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message, ids)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, list(blocks)))
    if turns and turns[0][0] == "assistant":
        turns.insert(0, ("user", [{"type": "text", "text": _OPENING}]))
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _blocks(message: Message, ids: "_CallIds") -> list[Block]:
    if message.role is Role.TOOL:
        return [{"type": "tool_result", "tool_use_id": ids.answered(message.tool_call_id or ""), "content": message.content}]
    # A blank text block is refused, and so is one that ends the conversation in white space.
    text = message.content.rstrip() if message.role is Role.ASSISTANT else message.content
    blocks: list[Block] = [{"type": "text", "text": text}] if text.strip() else []
    if message.tool_calls:
        names = ids.asked(message.tool_calls)
        blocks += [
            {"type": "tool_use", "id": name, "name": call.name, "input": _input(call)}
            for name, call in zip(names, message.tool_calls, strict=True)
        ]
    return blocks


class _CallIds:
    """The ids of one conversation's tool calls in the letters this format allows, and each only once: the conversation may have
    begun with a provider that numbers the calls of every answer anew, or writes ids that differ only in what is not allowed."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._open: list[tuple[str, str]] = []  # the calls of the last message that has any, as they were and as they are sent

    def asked(self, calls: Sequence[ToolCall]) -> list[str]:
        """The ids of the next message's calls."""
        self._open = [(call.id, self._new(call.id)) for call in calls]
        return [name for _, name in self._open]

    def answered(self, identity: str) -> str:
        """The id of the call that a result names."""
        for call in self._open:
            if call[0] == identity:
                self._open.remove(call)
                return call[1]
        return self._new(identity)

    def _new(self, identity: str) -> str:
        allowed = name = _FOREIGN_IN_ID.sub("_", identity) or "_"
        number = 1
        while name in self._taken:
            number += 1
            name = f"{allowed}_{number}"
        self._taken.add(name)
        return name


def _input(call: ToolCall) -> Json:
    """The arguments as the object this format wants; what was no JSON object is shown as the model wrote it."""
    try:
        parsed: Json = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"not_an_object": call.arguments}


def _tools(request: ChatRequest) -> list[Json]:
    """The tools; also those that only the history still speaks of, for which the format demands a definition."""
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    if not tools:
        names = {call.name for message in request.messages for call in message.tool_calls}
        tools = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in sorted(names)]
    return tools


def _tool_choice(request: ChatRequest) -> Json:
    if not _tools(request):
        return None
    if not request.tools:
        return {"type": "none"}
    choice: Block
    match request.tool_choice:
        case NamedTool(name=name):
            choice = {"type": "tool", "name": name}
        case "required":
            choice = {"type": "any"}
        case "none":
            return {"type": "none"}
        case _:
            choice = {"type": "auto"}
    if request.extra.get("parallel_tool_calls") is False:
        choice["disable_parallel_tool_use"] = True
    return choice if len(choice) > 1 or request.tool_choice else None
