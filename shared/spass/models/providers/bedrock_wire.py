"""Write and read Amazon Bedrock's Converse format (https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html)."""

import json
from typing import Annotated, Final

from pydantic import BaseModel, Field

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolSpec
from spass.models.errors import BackendUnsupported
from spass.models.providers.content_blocks import (
    Block,
    ToolCallIds,
    alternate_roles,
    inline_image,
    message_blocks,
    strict_schema,
    system_texts,
)
from spass.models.providers.payloads import FewItems, LenientObject, Tokens
from spass.models.providers.unsupported_fields import (
    clamp_temperature,
    effective_top_p,
    reasoning_effort,
    reject_image_urls,
    reject_unsupported,
)
from spass.models.types import ChatRequest, NamedTool

_NAME: Final = "Bedrock"
_UNSUPPORTED_FIELDS: Final = frozenset(
    {"presence_penalty", "frequency_penalty", "logit_bias", "verbosity", "parallel_tool_calls"}
)
_EMPTY_TEXT: Final = "(nothing)"

_FINISH_REASONS: Final = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
}
"""All others (``end_turn``, ``stop_sequence``) are a stop."""


class UsagePayload(BaseModel):
    inputTokens: Tokens = 0  # noqa: N815 - the wire's names, here and below
    outputTokens: Tokens = 0  # noqa: N815
    cacheReadInputTokens: Tokens = 0  # noqa: N815
    cacheWriteInputTokens: Tokens = 0  # noqa: N815

    @property
    def tokens(self) -> TokenUsage:
        """Return the usage. Prompt tokens include reads from and writes to the cache, which ``inputTokens`` does not
        (https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html)."""
        cached = self.cacheReadInputTokens + self.cacheWriteInputTokens
        return TokenUsage(self.inputTokens + cached, self.outputTokens)


Usage = Annotated[UsagePayload | None, LenientObject]


class ToolUsePayload(BaseModel):
    toolUseId: str = ""  # noqa: N815
    name: str = ""
    input: dict[str, object] = {}


class BlockPayload(BaseModel):
    """A text or a tool call, whole or its beginning in a stream. A reasoning block has neither field."""

    text: str = ""
    toolUse: ToolUsePayload | None = None  # noqa: N815


class MessagePayload(BaseModel):
    content: Annotated[list[BlockPayload], FewItems]


class OutputPayload(BaseModel):
    message: MessagePayload


class ConversePayload(BaseModel):
    output: OutputPayload
    stopReason: Annotated[str, Field(min_length=1)]  # noqa: N815
    usage: Usage = None


class InputPayload(BaseModel):
    input: str = ""


class DeltaPayload(BaseModel):
    text: str = ""
    toolUse: InputPayload | None = None  # noqa: N815


class EventPayload(BaseModel):
    """Any event of a stream. The event's name determines its fields."""

    contentBlockIndex: Annotated[int, Field(ge=0)] = 0  # noqa: N815
    start: BlockPayload = BlockPayload()
    delta: DeltaPayload = DeltaPayload()
    stopReason: str = ""  # noqa: N815
    usage: Usage = None


def finish_reason(stop_reason: str) -> FinishReason:
    return _FINISH_REASONS.get(stop_reason, FinishReason.STOP)


def converse_body(request: ChatRequest) -> dict[str, Json]:
    """Return the body of POST /model/{id}/converse and /converse-stream, or raise ``BackendUnsupported``."""
    reject_unsupported(request, _NAME, _UNSUPPORTED_FIELDS)
    reject_image_urls(request, _NAME)
    inference = {
        "maxTokens": request.max_tokens,
        "temperature": clamp_temperature(request),
        "topP": effective_top_p(request),
        "stopSequences": request.stop or None,
    }
    callable_tools = () if request.tool_choice == "none" else request.tools
    fields: dict[str, Json] = {
        "system": [_text_block(text) for text in system_texts(request)],
        "messages": alternate_roles(request.messages, _blocks if callable_tools else _blocks_as_text, _text_block),
        "inferenceConfig": {name: value for name, value in inference.items() if value is not None},
        "toolConfig": _tool_config(request) if callable_tools else None,
        "outputConfig": _output_config(request),
    }
    return {name: value for name, value in fields.items() if value}


def _text_block(text: str) -> Block:
    return {"text": text}


def _image_block(image: Image) -> Block:
    data = inline_image(image)
    if data is None:  # for example image/svg+xml; ``reject_image_urls`` has rejected all URLs except data URLs
        raise BackendUnsupported("Bedrock does not accept this format of picture. Use png, jpeg, gif or webp.", param="messages")
    return {"image": {"format": data.format, "source": {"bytes": data.data}}}


def _blocks(message: Message, ids: ToolCallIds) -> list[Block]:
    if message.role is Role.TOOL:
        # A result must have a text, and the format refuses a blank one.
        content: list[Json] = [_text_block(message.content if message.content.strip() else _EMPTY_TEXT)]
        return [{"toolResult": {"toolUseId": ids.for_result(message.tool_call_id or ""), "content": content}}]
    calls = ids.rewrite_calls(message.tool_calls) if message.tool_calls else []
    return message_blocks(message, _text_block, _image_block) + [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}} for call in calls
    ]


def _blocks_as_text(message: Message, ids: ToolCallIds) -> list[Block]:
    """Return the blocks of ``message`` with its tool calls as text: the format cannot forbid calls, and requires the definitions
    of all tools in the conversation."""
    del ids
    if message.role is Role.TOOL:
        return [_text_block(f"[Result of a tool call]\n{message.content if message.content.strip() else _EMPTY_TEXT}")]
    calls = [_text_block(f"[Called the tool {call.name} with {call.arguments or '{}'}]") for call in message.tool_calls]
    return message_blocks(message, _text_block, _image_block) + calls


def _tool_config(request: ChatRequest) -> dict[str, Json]:
    config: dict[str, Json] = {"tools": [_tool(tool) for tool in request.tools]}
    match request.tool_choice:
        case NamedTool(name=name):
            config["toolChoice"] = {"tool": {"name": name}}
        case "required":
            config["toolChoice"] = {"any": {}}
        case "auto":
            config["toolChoice"] = {"auto": {}}
        case _:
            pass
    return config


def _tool(tool: ToolSpec) -> Block:
    body: Block = {"name": tool.name, "inputSchema": {"json": tool.parameters}}
    if tool.description.strip():
        body["description"] = tool.description
    if tool.strict:
        body["strict"] = True
    return {"toolSpec": body}


def _output_config(request: ChatRequest) -> dict[str, Json]:
    """Return ``outputConfig`` (https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html)."""
    config: dict[str, Json] = {}
    schema = strict_schema(request)
    if schema is not None:
        description = {name: schema[name] for name in ("name", "description") if schema.get(name)}
        schema_json = json.dumps(schema["schema"], ensure_ascii=False)
        config["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": {**description, "schema": schema_json}}}
    if effort := reasoning_effort(request, _NAME):
        config["effort"] = effort
    return config
