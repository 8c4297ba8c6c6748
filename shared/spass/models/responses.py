"""Define the parts of answers that several packages write in OpenAI's format."""

from typing import Literal

from spass.tenancy.response_model import Count, ResponseModel


class CalledFunction(ResponseModel):
    """A function and its arguments, as the model wrote them."""

    name: str
    arguments: str


class FunctionCall(ResponseModel):
    """A function call that the model requests."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class TurnUsage(ResponseModel):
    """The tokens of all model calls of a turn."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
