"""Call Ollama: chat with its own API, embeddings with its OpenAI-compatible one (https://docs.ollama.com/api)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel

from spass.core.ids import new_id
from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCallDelta, ToolSpec
from spass.models.errors import BackendUnavailable
from spass.models.providers.content_blocks import CallsWithoutResult, arguments_of
from spass.models.providers.error_responses import error_inside_answer
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import AnswerReader, HttpProvider, merge_deltas
from spass.models.providers.openai_compatible import read_embeddings
from spass.models.providers.payloads import FewItems, LenientText, Tokens, join_surrogates, parse
from spass.models.providers.sse import LineParser
from spass.models.providers.unsupported_fields import reasoning_effort, reject_image_urls, reject_unsupported
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest

_UNSUPPORTED_FIELDS: Final = frozenset({"tool_choice", "parallel_tool_calls", "logit_bias", "verbosity"})
_THINK: Final[Mapping[str, Json]] = {"none": False, "low": "low", "medium": "medium", "high": "high"}


class Ollama(HttpProvider[bytes]):
    """Call the server at ``base_url``, which may end with ``/v1``."""

    base_url: ClassVar[str] = "http://127.0.0.1:11434"
    chat_path: ClassVar[str] = "/api/chat"

    def address(self) -> str:
        return super().address().rstrip("/").removesuffix("/v1")

    def body(self, request: ChatRequest) -> dict[str, Json]:
        return chat_body(request)

    def reader(self) -> "_Reader":
        return _Reader(self.connection.secrets)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        body: dict[str, Json] = {"model": request.model, "input": request.texts}
        return read_embeddings(await self.connection.post("/v1/embeddings", body, context))


class FunctionPayload(BaseModel):
    name: str | None = None
    arguments: dict[str, object] | str | None = None

    @property
    def text(self) -> str:
        """Return the arguments as JSON. Text instead of an object is what the model wrote: the tool's caller checks it."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments or {}, ensure_ascii=False)


class ToolCallPayload(BaseModel):
    function: FunctionPayload


class MessagePayload(BaseModel):
    content: str | None = None
    thinking: LenientText = ""
    tool_calls: Annotated[list[ToolCallPayload], FewItems] | None = None


class AnswerPayload(BaseModel):
    """A line of a stream, or a whole answer. Only the last line is ``done``, and only it has counts."""

    message: MessagePayload | None = None
    done: bool = False
    done_reason: LenientText = ""
    prompt_eval_count: Tokens = 0
    eval_count: Tokens = 0
    error: object = None

    @property
    def usage(self) -> TokenUsage | None:
        tokens = TokenUsage(self.prompt_eval_count, self.eval_count)
        return tokens if tokens.total_tokens else None

    @property
    def finish_reason(self) -> FinishReason:
        """Return the reason. All others (``load``, ``unload``, none in old versions) are a stop."""
        return FinishReason.LENGTH if self.done_reason == "length" else FinishReason.STOP


class _Reader(AnswerReader[bytes]):
    """Read one answer. A line holds whole tool calls. They get ids of our own: most versions of Ollama send none."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__(LineParser(), secrets)
        self._calls = 0  # tool calls so far
        self._last: AnswerPayload | None = None

    def is_last(self, event: bytes) -> bool:
        del event
        return self._last is not None

    def read(self, event: bytes) -> ChatDelta | None:
        payload = parse(AnswerPayload, event)
        if payload.error:
            raise error_inside_answer(payload.error, secrets=self._secrets)
        if payload.done:
            self._last = payload
        message = payload.message or MessagePayload()
        self._reasoning_characters += len(message.thinking)
        content = self._texts.add("content", message.content or "")
        calls = tuple(self._call(call) for call in message.tool_calls or ())
        return self._next_delta(ChatDelta(content, calls) if content or calls else None)

    def end(self) -> ChatDelta:
        if self._last is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        finish = self._last.finish_reason
        if finish is FinishReason.STOP and self._calls:
            finish = FinishReason.TOOL_CALLS
        return self._with_reasoning(replace(self._last_characters(), finish_reason=finish, usage=self._last.usage))

    def read_whole(self, body: bytes) -> ChatDelta:
        delta = self.read(body)
        if self._last is None:
            raise malformed_response("it has no end")
        return merge_deltas([delta, self.end()])

    def _call(self, call: ToolCallPayload) -> ToolCallDelta:
        if not call.function.name:
            raise malformed_response("a tool call has no name")
        index, self._calls = self._calls, self._calls + 1
        return ToolCallDelta(index, new_id("call"), join_surrogates(call.function.name), join_surrogates(call.function.text))


def chat_body(request: ChatRequest) -> dict[str, Json]:
    """Return the body of POST /api/chat, or raise ``BackendUnsupported``.

    By default Ollama drops the beginning of a prompt that is longer than its own window, without an error. So the body states the
    catalogue's window, and forbids to truncate (``truncate``, since Ollama 0.12.6: older versions ignore it).
    """
    reject_unsupported(request, "ollama", _UNSUPPORTED_FIELDS)
    reject_image_urls(request, "Ollama")
    # Ollama ignores tool_choice, but a model without tools cannot call any.
    tools = [] if request.tool_choice == "none" else [_tool(tool) for tool in request.tools]
    fields: dict[str, Json] = {
        "model": request.model,
        "messages": _messages(request.messages),
        "tools": tools or None,
        "format": _format(request.response_format or {}),
        "options": _options(request) or None,
        "think": _think(request),
        "truncate": False if request.context_window else None,
        "stream": request.stream,  # Ollama streams by default
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tool(tool: ToolSpec) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _options(request: ChatRequest) -> dict[str, Json]:
    options: dict[str, Json] = {
        "num_ctx": request.context_window,
        "num_predict": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "stop": request.stop or None,
        "presence_penalty": request.extra.get("presence_penalty"),
        "frequency_penalty": request.extra.get("frequency_penalty"),
    }
    return {name: value for name, value in options.items() if value is not None}


def _format(response_format: Mapping[str, Json]) -> Json:
    match response_format.get("type"):
        case "json_schema":
            schema = response_format.get("json_schema")
            return (schema.get("schema") if isinstance(schema, Mapping) else None) or "json"
        case "json_object":
            return "json"
        case _:
            return None


def _think(request: ChatRequest) -> Json:
    effort = reasoning_effort(request, "Ollama", _THINK)  # Ollama would use the model's default for another level
    return None if effort is None else _THINK[effort]


def _messages(messages: Sequence[Message]) -> list[Json]:
    names = CallsWithoutResult()  # Ollama has no ids of calls: a result has the name of its tool
    return [_message(message, names) for message in messages]


def _message(message: Message, names: CallsWithoutResult) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "role": message.role.value,
        "content": message.content,
        "images": [part.url.partition(",")[2] for part in message.parts if isinstance(part, Image)] or None,
    }
    if message.tool_calls:
        names.begin((call.id, call.name) for call in message.tool_calls)
        fields["tool_calls"] = [{"function": {"name": call.name, "arguments": arguments_of(call)}} for call in message.tool_calls]
    if message.role is Role.TOOL:
        fields["tool_name"] = names.answer(message.tool_call_id or "")
    return {name: value for name, value in fields.items() if value is not None}
