"""The body of ``POST /v1/chat/completions``, as OpenAI documents it (https://platform.openai.com/docs/api-reference/chat/create).

Every parameter that OpenAI knows is either accepted or refused with a reason; any other is refused as unknown. If no provider of
the model supports a parameter that is accepted here, the providers refuse it (``llm.providers.unsupported_fields``).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from spass.completions.body import Body, NestedObject
from spass.completions.messages import WireMessage, check_tool_answers
from spass.core.messages import MAX_OUTPUT_TOKENS, Json, ToolSpec
from spass.models.types import ChatRequest, NamedTool, ToolChoice

MAX_TOOLS: Final = 128
"""Tools of one model call: OpenAI's limit."""

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

# Forwarded unchanged to providers of OpenAI's protocol.
_FORWARDED_FIELDS: Final = (
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
)


def _unsupported(reason: str) -> BeforeValidator:
    """Return a validator that accepts only null and false."""

    def refuse(value: object) -> None:
        if value is not None and value is not False:
            raise PydanticCustomError("not_supported", "not supported by this gateway{reason}", {"reason": reason})

    return BeforeValidator(refuse)


class FunctionDefinition(NestedObject):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(NestedObject):
    type: Literal["function"]
    function: FunctionDefinition

    def spec(self) -> ToolSpec:
        parameters = self.function.parameters or {"type": "object", "properties": {}}
        return ToolSpec(self.function.name, self.function.description or "", parameters, self.function.strict)


class FunctionReference(NestedObject):
    name: FunctionName


class NamedToolChoice(NestedObject):
    type: Literal["function"]
    function: FunctionReference


ToolChoiceBody: TypeAlias = Literal["none", "auto", "required"] | NamedToolChoice | None


class JsonSchemaFormat(NestedObject):
    name: FunctionName
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(NestedObject):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("response_format", "json_schema belongs to type 'json_schema', and is needed there")
        return self


class StreamOptions(NestedObject):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_unique_names(tools: list[ToolDefinition]) -> list[ToolDefinition]:
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise PydanticCustomError("duplicate_tool", "two tools have the same name")
    return tools


def _check_n(value: int) -> int:
    if value != 1:
        raise PydanticCustomError("one_answer", "must be 1: one answer at a time")
    return value


class ChatCompletionRequest(Body):
    """The body of a chat request."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    messages: Annotated[list[WireMessage], Field(min_length=1), FailFast(), AfterValidator(check_tool_answers)]

    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS), AfterValidator(_check_unique_names)] | None = None
    tool_choice: ToolChoiceBody = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    max_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, Field(max_length=4), BeforeValidator(_to_list)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    n: Annotated[int, AfterValidator(_check_n)] | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    modalities: list[Literal["text"]] | None = None

    logprobs: Annotated[None, _unsupported("")] = None
    top_logprobs: Annotated[None, _unsupported("")] = None
    audio: Annotated[None, _unsupported("; it answers with text")] = None
    prediction: Annotated[None, _unsupported("")] = None
    web_search_options: Annotated[None, _unsupported("")] = None
    functions: Annotated[None, _unsupported("; use tools")] = None
    function_call: Annotated[None, _unsupported("; use tool_choice")] = None

    # ``info.data`` has the fields that are declared above the validated field and are valid.

    @field_validator("tool_choice")
    @classmethod
    def _check_tool_choice(cls, choice: ToolChoiceBody, info: ValidationInfo) -> ToolChoiceBody:
        if "tools" not in info.data:
            return choice
        names = {tool.function.name for tool in info.data["tools"] or ()}
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise PydanticCustomError("tool_choice", "names a function that is not among the tools")
        if choice == "required" and not names:
            raise PydanticCustomError("tool_choice", "'required' needs tools")
        return choice

    @field_validator("max_completion_tokens")
    @classmethod
    def _check_limits(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and info.data.get("max_tokens") not in (None, limit):
            raise PydanticCustomError("max_tokens", "differs from max_tokens; send only max_completion_tokens")
        return limit

    @field_validator("stream_options")
    @classmethod
    def _check_stream_options(cls, options: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if options is not None and not info.data.get("stream", True):
            raise PydanticCustomError("stream_options", "is allowed only when stream is true")
        return options

    @property
    def include_usage(self) -> bool:
        """Return whether the stream ends with a separate chunk for the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def chat_request(self) -> ChatRequest:
        """Return the request in the form that all providers take."""
        dumped: Mapping[str, Json] = self.model_dump(
            include={*_FORWARDED_FIELDS, "response_format"}, exclude_none=True, by_alias=True
        )
        response_format = dumped.get("response_format")
        extra = {name: dumped[name] for name in _FORWARDED_FIELDS if name in dumped}
        if isinstance(self.user, str):
            extra["user"] = self.user
        return ChatRequest(
            model=self.model,
            messages=tuple(message.message() for message in self.messages),
            tools=tuple(tool.spec() for tool in self.tools or ()),
            tool_choice=self._tool_choice(),
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=tuple(self.stop or ()),
            seed=self.seed,
            response_format=response_format if isinstance(response_format, Mapping) else None,
            extra=extra,
            stream=bool(self.stream),
        )

    def _tool_choice(self) -> ToolChoice | None:
        if isinstance(self.tool_choice, NamedToolChoice):
            return NamedTool(self.tool_choice.function.name)
        return self.tool_choice if self.tools else None
