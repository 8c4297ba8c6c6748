"""Write requests in OpenAI's chat format (https://platform.openai.com/docs/api-reference/chat)."""

from spass.core.messages import Image, Json, Message, ToolSpec
from spass.models.types import ChatRequest, NamedTool, ToolChoice


def chat_body(request: ChatRequest, max_tokens_field: str) -> dict[str, Json]:
    """Return the body of POST /chat/completions. A stream must report its usage, because costs are computed from it."""
    tools = [_tool(tool) for tool in request.tools]
    fields: dict[str, Json] = {
        "model": request.model,
        "messages": [message_body(message) for message in request.messages],
        "tools": tools or None,
        "tool_choice": _tool_choice(request.tool_choice) if tools else None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        max_tokens_field: request.max_tokens,
        "stop": request.stop or None,
        "seed": request.seed,
        "response_format": request.response_format,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream else None,
    }
    # Without tools OpenAI refuses parallel_tool_calls and tool_choice.
    extra = {name: value for name, value in request.extra.items() if tools or name != "parallel_tool_calls"}
    return {**extra, **{name: value for name, value in fields.items() if value is not None}}


def _tool(tool: ToolSpec) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def message_body(message: Message) -> dict[str, Json]:
    content = [_part(part) for part in message.parts] or message.content
    body: dict[str, Json] = {"role": message.role.value, "content": content}
    if message.name is not None:
        body["name"] = message.name
    if message.tool_calls:
        body["content"] = content or None
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def _part(part: str | Image) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _tool_choice(choice: ToolChoice | None) -> Json:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice
