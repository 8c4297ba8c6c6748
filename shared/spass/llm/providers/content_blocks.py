"""Write conversations as Anthropic and Bedrock want them: user and assistant alternate, and a message is a list of blocks."""

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
_DATA_URL: Final = re.compile(r"data:image/(\w+);base64,(.*)", re.DOTALL)


class InlineImage(NamedTuple):
    """A picture in base64, and its format: png, jpeg, gif or webp."""

    format: str
    data: str


def inline_image(image: Image) -> InlineImage | None:
    """Return the picture of a ``data:`` URL, or None for another URL."""
    found = _DATA_URL.fullmatch(image.url)
    return InlineImage(found[1], found[2]) if found else None


def message_blocks(message: Message, text: Callable[[str], Block], picture: Callable[[Image], Block]) -> list[Block]:
    """Return the texts and pictures of ``message`` as blocks.

    These formats refuse a blank text, and a conversation that ends with white space of the assistant's.
    """
    parts = message.parts or (message.content.rstrip() if message.role is Role.ASSISTANT else message.content,)
    return [picture(part) if isinstance(part, Image) else text(part) for part in parts if isinstance(part, Image) or part.strip()]


def alternate_roles(
    messages: Sequence[Message], blocks_of: Callable[[Message, "ToolCallIds"], list[Block]], text: Callable[[str], Block]
) -> list[Json]:
    """Return the conversation without system messages, with user and assistant in turns and the user first.

    Successive tool results become one user message. An empty conversation gets a placeholder, because these formats refuse it
    and OpenAI does not.
    """
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
    """Rewrite the ids of one conversation's tool calls to characters that these formats allow, each id once.

    Another provider may have numbered the calls of each answer from 1, or written ids that differ only in other characters.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}  # stem -> the last number appended to it
        self._open: dict[str, list[str]] = {}  # calls of the last message that has any: id -> rewritten ids

    def for_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        """Return the rewritten ids of the next message's calls."""
        self._open = {}
        names = [self._new(call.id) for call in calls]
        for call, name in zip(calls, names, strict=True):
            self._open.setdefault(call.id, []).append(name)
        return names

    def for_result(self, identity: str) -> str:
        """Return the rewritten id of the call that a result answers."""
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
    """Return the name of a tool, or an id, in the characters and the length that these formats allow."""
    return _DISALLOWED.sub("_", name)[:_MAX_NAME] or "_"


def arguments_of(call: ToolCall) -> Json:
    """Return the arguments as an object, as these formats want them.

    Arguments that are not a JSON object are quoted, because otherwise every later call of the conversation would fail.
    """
    try:
        return read_object(call.arguments if call.arguments.strip() else "{}")
    except InvalidJson:
        return {"not_an_object": call.arguments}


def tools_from_history(messages: Sequence[Message]) -> list[ToolSpec]:
    """Return definitions for the tools that were called, with any parameters."""
    names = {sanitize_name(call.name) for message in messages for call in message.tool_calls}
    return [ToolSpec(name, "", {"type": "object"}) for name in sorted(names)]


def system_texts(request: ChatRequest) -> list[str]:
    """Return all system messages, and an instruction to write JSON where the format has no field for that."""
    texts = [message.content for message in request.messages if message.role is Role.SYSTEM]
    wanted = request.response_format or {}
    if strict_schema(request) is None and wanted.get("type") in {"json_object", "json_schema"}:
        texts.append("Answer with one JSON value and nothing else: no prose, no code fence.")
        schema = wanted.get("json_schema")
        if isinstance(schema, Mapping) and schema.get("schema"):
            texts.append("It must match this JSON Schema: " + json.dumps(schema["schema"], ensure_ascii=False))
    return [text for text in texts if text.strip()]


def strict_schema(request: ChatRequest) -> Mapping[str, Json] | None:
    """Return the ``strict`` ``json_schema`` of the request, if any, which the provider enforces or refuses.

    A schema that is not strict becomes an instruction (``system_texts``), which every model understands.
    """
    schema = (request.response_format or {}).get("json_schema")
    return schema if isinstance(schema, Mapping) and schema.get("strict") and schema.get("schema") else None
