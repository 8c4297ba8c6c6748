"""The answers of ``/v1``'s model routes, as OpenAI's clients read them."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from spass.core.cost import CostSource
from spass.models.responses import FunctionCall
from spass.tenancy.response_model import LEAVE_OUT_IF_EMPTY, Count, DecimalText, ModelName, ResponseModel


class Model(ResponseModel):
    """A model that the caller's token may use, or an agent with such a model."""

    id: ModelName
    object: Literal["model"] = "model"
    created: Count
    owned_by: str = "spass"
    kind: Literal["chat", "embedding"]


class ModelList(ResponseModel):
    """All models that the caller's token may use."""

    object: Literal["list"] = "list"
    data: list[Model]


class CompletionMessage(ResponseModel):
    """The message of the model."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None
    tool_calls: Annotated[tuple[FunctionCall, ...], LEAVE_OUT_IF_EMPTY] = ()


class Choice(ResponseModel):
    """The one answer of a chat completion."""

    index: Count
    message: CompletionMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class CostDetails(ResponseModel):
    """The cost of the whole request, exact. `source` is the weakest of all sub-calls."""

    eur: DecimalText
    usd: DecimalText
    source: CostSource
    sub_calls: Count


class CompletionUsage(ResponseModel):
    """The tokens and the cost of all model calls of the request."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    cost: Annotated[
        float,
        WithJsonSchema({"type": "number", "minimum": 0, "description": "In US dollars; `cost_details` has the exact decimals."}),
    ]
    cost_details: CostDetails


class ChatCompletion(ResponseModel):
    """A model's whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: Count
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class Embedding(ResponseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: Count
    embedding: list[float] | Annotated[str, Field(description="base64 of float32, little-endian")]


class EmbeddingUsage(ResponseModel):
    """The tokens of all texts."""

    prompt_tokens: Count
    total_tokens: Count


class EmbeddingList(ResponseModel):
    """The vectors of all texts, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
