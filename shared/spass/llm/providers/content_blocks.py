"""Conversations for formats in which user and assistant take turns and a message is a list of blocks: Anthropic's, Bedrock's."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Image, Json, Message, Role, ToolCall, ToolSpec
from spass.llm.types import ChatRequest

Block = dict[str, Json]

_SUMMARY_PLACEHOLDER: Final = "(The conversation so far was summarised.)"
_EMPTY_PLACEHOLDER: Final = "(Begin.)"
_DISALLOWED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME: Final = 64
_STEM: Final = 54  # of an id that gets a number
_MAX_DEPTH: Final = 64
_DATA_URL: Final = re.compile(r"data:image/(\w+);base64,(.*)", re.DOTALL)


class InlineImage(NamedTuple):
    """The bytes of a picture in base64, and their format: png, jpeg, gif or webp."""

    format: str
    data: str


def inline_image(image: Image) -> InlineImage | None:
    """The picture that stands in the address itself; None if it is elsewhere."""
    found = _DATA_URL.fullmatch(image.url)
    return InlineImage(found[1], found[2]) if found else None


def message_blocks(message: Message, text: Callable[[str], Block], picture: Callable[[Image], Block]) -> list[Block]:
    """The texts and pictures of ``message``. A blank text is refused by these formats, and so is one of the assistant's that ends
    the conversation in white space."""
    parts = message.parts or (message.content.rstrip() if message.role is Role.ASSISTANT else message.content,)
    return [picture(part) if isinstance(part, Image) else text(part) for part in parts if isinstance(part, Image) or part.strip()]


def alternate_roles(
    messages: Sequence[Message], blocks_of: Callable[[Message, "ToolCallIds"], list[Block]], text: Callable[[str], Block]
) -> list[Json]:
    """The conversation without its system messages: tool results that follow each other are one user message, and the user
    begins, also where nobody has said anything: these formats refuse what OpenAI answers."""
    turns: list[tuple[str, list[Json]]] = []
    ids = ToolCallIds()
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = blocks_of(message, ids)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, list(blocks)))
    if not turns or turns[0][0] == "assistant":
        turns.insert(0, ("user", [text(_SUMMARY_PLACEHOLDER if turns else _EMPTY_PLACEHOLDER)]))
    return [{"role": role, "content": blocks} for role, blocks in turns]


class ToolCallIds:
    """The ids of one conversation's tool calls in the letters these formats allow, and each only once: the conversation may have
    begun with a provider that numbers the calls of every answer anew, or writes ids that differ only in what is not allowed."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}  # the last that was put behind a stem
        self._open: dict[str, list[str]] = {}  # the calls of the last message that has any, as they were and as they are sent

    def asked(self, calls: Sequence[ToolCall]) -> list[str]:
        """The ids of the next message's calls."""
        self._open = {}
        names = [self._new(call.id) for call in calls]
        for call, name in zip(calls, names, strict=True):
            self._open.setdefault(call.id, []).append(name)
        return names

    def answered(self, identity: str) -> str:
        """The id of the call that a result names."""
        names = self._open.get(identity)
        return names.pop(0) if names else self._new(identity)

    def _new(self, identity: str) -> str:
        allowed = name = sanitize_name(identity)
        stem = allowed[:_STEM]
        while name in self._taken:
            self._numbers[stem] = number = self._numbers.get(stem, 1) + 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name


def sanitize_name(name: str) -> str:
    """A tool's name, or an id, in the letters and the length these formats allow."""
    return _DISALLOWED.sub("_", name)[:_MAX_NAME] or "_"


def arguments_of(call: ToolCall) -> Json:
    """The arguments as the object these formats want; what was none, or none that JSON can write again, is shown as the model
    wrote it: else every later call of the conversation would fail."""
    try:
        return read_object(call.arguments if call.arguments.strip() else "{}", max_depth=_MAX_DEPTH)
    except InvalidJson:
        return {"not_an_object": call.arguments}


def tools_from_history(messages: Sequence[Message]) -> list[ToolSpec]:
    """The tools that were called, as far as one can tell."""
    names = {sanitize_name(call.name) for message in messages for call in message.tool_calls}
    return [ToolSpec(name, "", {"type": "object"}) for name in sorted(names)]


def system_texts(request: ChatRequest) -> list[str]:
    """All system messages, wherever they stood, and the wish for JSON where nothing but words can express it."""
    texts = [message.content for message in request.messages if message.role is Role.SYSTEM]
    wanted = request.response_format or {}
    if strict_schema(request) is None and wanted.get("type") in {"json_object", "json_schema"}:
        texts.append("Answer with one JSON value and nothing else: no prose, no code fence.")
        schema = wanted.get("json_schema")
        if isinstance(schema, Mapping) and schema.get("schema"):
            texts.append("It must match this JSON Schema: " + json.dumps(schema["schema"], ensure_ascii=False))
    return [text for text in texts if text.strip()]


def strict_schema(request: ChatRequest) -> Mapping[str, Json] | None:
    """The ``json_schema`` that an answer must match without fail. It is passed on, and a model that cannot promise it refuses;
    what is not ``strict`` is asked for in words, which every model understands."""
    schema = (request.response_format or {}).get("json_schema")
    return schema if isinstance(schema, Mapping) and schema.get("strict") and schema.get("schema") else None
