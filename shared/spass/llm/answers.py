"""Parts of answers that have OpenAI's form in several rooms."""

from typing import Literal

from spass.tenancy.response_model import ResponseModel


class CalledFunction(ResponseModel):
    """A function and its arguments, as the model wrote them."""

    name: str
    arguments: str


class FunctionCall(ResponseModel):
    """A call of a function that the model asks for."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
