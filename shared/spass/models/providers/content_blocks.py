"""Write and read the form of Anthropic and Bedrock: user and assistant alternate, and a message is a list of blocks."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Image, Json, Message, Role, ToolCall, ToolCallDelta, ToolSpec, replayable_name
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import AnswerReader
from spass.models.providers.payloads import join_surrogates
from spass.models.providers.sse import StreamParser
from spass.models.types import ChatDelta, ChatRequest

E = TypeVar("E")

Block = dict[str, Json]

_SUMMARY_PLACEHOLDER: Final = "(The conversation so far was summarised.)"
_EMPTY_PLACEHOLDER: Final = "(Begin.)"
_STEM: Final = 54  # characters of an id before its number
_DATA_URL: Final = re.compile(r"data:image/(\w+);base64,(.*)", re.DOTALL)


class InlineImage(NamedTuple):
    """A picture in base64, and its format: png, jpeg, gif or webp."""

    format: str
    data: str


def inline_image(image: Image) -> InlineImage | None:
    """Return the picture of a ``data:`` URL, or None for another URL."""
    match = _DATA_URL.fullmatch(image.url)
    return InlineImage(match[1], match[2]) if match else None


def message_blocks(message: Message, text: Callable[[str], Block], picture: Callable[[Image], Block]) -> list[Block]:
    """Return the texts and pictures of ``message`` as blocks. These formats refuse a blank text, and a last assistant message
    that ends with white space."""
    parts = message.parts or (message.content.rstrip() if message.role is Role.ASSISTANT else message.content,)
    return [picture(part) if isinstance(part, Image) else text(part) for part in parts if isinstance(part, Image) or part.strip()]


def alternate_roles(
    messages: Sequence[Message], blocks_of: Callable[[Message, "ToolCallIds"], list[Block]], text: Callable[[str], Block]
) -> list[Json]:
    """Return the conversation without system messages. User and assistant alternate, and the user is first.

    Successive tool results become one user message. An empty conversation gets a placeholder: OpenAI accepts it, but these
    formats refuse it.
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


class RewrittenCall(NamedTuple):
    """A tool call with an id, a name and arguments that these formats allow."""

    id: str
    name: str
    arguments: Json


class CallsWithoutResult:
    """The calls of the last message with calls. Calls with the same id are answered in their order."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def begin(self, calls: Iterable[tuple[str, str]]) -> None:
        """Replace the calls: the id of each, and what ``answer`` returns for it."""
        self._values = {}
        for identity, value in calls:
            self._values.setdefault(identity, []).append(value)

    def answer(self, identity: str) -> str | None:
        """Return the value of the next call ``identity``, or None if there is no such call."""
        values = self._values.get(identity)
        return values.pop(0) if values else None


class ToolCallIds:
    """Rewrite the ids of a conversation's tool calls to unique ids of characters that these formats allow.

    Another provider may have numbered the calls of each answer from 1, or used ids that differ only in disallowed characters.
    """

    def __init__(self) -> None:
        self._used_ids: set[str] = set()
        self._numbers: dict[str, int] = {}  # stem -> the last number appended to it
        self._waiting = CallsWithoutResult()

    def rewrite_calls(self, calls: Sequence[ToolCall]) -> list[RewrittenCall]:
        """Return the calls of the next message with rewritten ids."""
        rewritten = [RewrittenCall(self._new_id(call.id), replayable_name(call.name), arguments_of(call)) for call in calls]
        self._waiting.begin((call.id, new.id) for call, new in zip(calls, rewritten, strict=True))
        return rewritten

    def for_result(self, identity: str) -> str:
        """Return the rewritten id of the call that a result answers."""
        return self._waiting.answer(identity) or self._new_id(identity)

    def _new_id(self, identity: str) -> str:
        allowed = name = replayable_name(identity)
        stem = allowed[:_STEM]
        while name in self._used_ids:
            self._numbers[stem] = number = self._numbers.get(stem, 1) + 1
            name = f"{stem}_{number}"
        self._used_ids.add(name)
        return name


def arguments_of(call: ToolCall) -> Json:
    """Return the arguments as an object, which these formats require. Put other arguments into one as a string: otherwise every
    later call of the conversation would fail."""
    try:
        return read_object(call.arguments if call.arguments.strip() else "{}")
    except InvalidJson:
        return {"not_an_object": call.arguments}


def tools_from_history(messages: Sequence[Message]) -> list[ToolSpec]:
    """Return definitions that accept any parameters for the tools that ``messages`` call."""
    names = {replayable_name(call.name) for message in messages for call in message.tool_calls}
    return [ToolSpec(name, "", {"type": "object"}) for name in sorted(names)]


def system_texts(request: ChatRequest) -> list[str]:
    """Return all system messages, and an instruction to write JSON if the format has no field for that."""
    texts = [message.content for message in request.messages if message.role is Role.SYSTEM]
    response_format = request.response_format or {}
    if strict_schema(request) is None and response_format.get("type") in {"json_object", "json_schema"}:
        texts.append("Answer with one JSON value and nothing else: no prose, no code fence.")
        schema = response_format.get("json_schema")
        if isinstance(schema, Mapping) and schema.get("schema"):
            texts.append("It must match this JSON Schema: " + json.dumps(schema["schema"], ensure_ascii=False))
    return [text for text in texts if text.strip()]


def strict_schema(request: ChatRequest) -> Mapping[str, Json] | None:
    """Return the ``strict`` ``json_schema`` of the request, if any, which the provider enforces or refuses. Another one becomes
    an instruction (``system_texts``), which every model understands."""
    schema = (request.response_format or {}).get("json_schema")
    return schema if isinstance(schema, Mapping) and schema.get("strict") and schema.get("schema") else None


class BlockReader(AnswerReader[E]):
    """Turn the content blocks of one answer into deltas. ``block`` is the number of a content block."""

    def __init__(self, parser: StreamParser[E], secrets: Sequence[str]) -> None:
        super().__init__(parser, secrets)
        self._calls: dict[int, int] = {}  # block -> number of the tool call
        self._first_arguments: dict[int, str] = {}  # blocks of tool calls whose arguments have not begun -> initial arguments

    def text(self, piece: str) -> ChatDelta | None:
        return ChatDelta(self._texts.add("content", piece)) if piece else None

    def start_call(self, block: int, call_id: str, name: str, arguments: Mapping[str, object]) -> ChatDelta:
        """Begin a tool call. It has these ``arguments`` if ``add_arguments`` adds none."""
        if not (call_id and name):
            raise malformed_response("a tool call has no name")
        self._calls[block] = index = len(self._calls)
        self._first_arguments[block] = json.dumps(arguments, ensure_ascii=False)
        return ChatDelta(tool_calls=(ToolCallDelta(index, join_surrogates(call_id), join_surrogates(name)),))

    def add_arguments(self, block: int, piece: str) -> ChatDelta:
        """Add a piece of the arguments of the tool call in ``block``."""
        if block not in self._calls:
            raise malformed_response("arguments without a tool call")
        self._first_arguments.pop(block, None)
        index = self._calls[block]
        return ChatDelta(tool_calls=(ToolCallDelta(index, arguments=self._texts.add(index, piece)),))

    def end_block(self, block: int) -> ChatDelta | None:
        arguments = self._first_arguments.get(block)
        return None if arguments is None else self.add_arguments(block, arguments)
