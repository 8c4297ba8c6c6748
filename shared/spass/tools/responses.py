"""The answers of ``/v1/tools``."""

from typing import Literal

from spass.core.messages import ToolSpec
from spass.tenancy.response_model import Count, JsonObject, JsonValue, ResponseModel


class ToolFunction(ResponseModel):
    """A tool as a model sees it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: JsonObject


class FunctionTool(ResponseModel):
    """A tool in the form of OpenAI's requests, with a word that says what it is for."""

    type: Literal["function"] = "function"
    function: ToolFunction
    category: str

    @classmethod
    def of(cls, tool: ToolSpec) -> "FunctionTool":
        function = ToolFunction(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
        return cls(function=function, category=tool.category or "")


class ToolList(ResponseModel):
    """Every tool of the gateway."""

    tools: list[FunctionTool]


class ToolResult(ResponseModel):
    """The result of one tool call. A tool that failed has the result `{"error": …}`."""

    name: str
    result: JsonValue
    duration_ms: Count
