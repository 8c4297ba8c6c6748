"""What a tool is: a pydantic model of one call. Its fields are the arguments, its docstring the description, ``run`` does it.

To add a tool, write one subclass of ``Tool`` and one line in ``registry.TOOLS``. Docstring and field descriptions are prompts:
they are all a model knows about the tool.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from spass.calls.scope import Scope
from spass.core.ids import IndexId
from spass.core.messages import Json, ToolSpec
from spass.rag.answers import Hit, QueryAnswer


class ToolError(Exception):
    """A tool could not do what it was asked. ``message`` is written for the model and says what to do instead."""

    def __init__(self, message: str, *, code: str = "tool_failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Knowledge(Protocol):
    """What tools and agents need of ``rag``; said here so that a tool is told no more and tests need no store."""

    async def query(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> QueryAnswer:
        """The best ``top_k`` chunks.

        Raises:
            IndexNotFound: this tenant has no such index.
        """
        ...

    async def retrieve(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> Sequence[Hit]:
        """The same for an agent's prompt: an absent index adds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may act with. A tool acts inside the tenant of ``scope`` only."""

    scope: Scope
    rag: Knowledge


class Tool(BaseModel):
    """One call of a tool, its arguments validated."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    tool_name: ClassVar[str]
    timeout: ClassVar[float] = 10.0
    """Seconds after which a call is given up."""

    async def run(self, context: ToolContext, /) -> Json:
        """The result, as JSON.

        Raises:
            ToolError: what the model is told instead of a result.
            SpassError: a room below said no; the model is told its code and message.
        """
        raise NotImplementedError

    @classmethod
    def spec(cls) -> ToolSpec:
        """The tool as a model sees it."""
        schema = {key: value for key, value in cls.model_json_schema().items() if key not in ("title", "description")}
        return ToolSpec(cls.tool_name, inspect.cleandoc(cls.__doc__ or ""), _without_titles(schema))


def _without_titles(schema: Mapping[str, Json]) -> dict[str, Json]:
    """``schema`` without pydantic's generated titles, which repeat field names and cost tokens. A property named ``title``
    stays."""
    cleaned: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            cleaned[key] = {name: _without_titles(field) for name, field in value.items() if isinstance(field, Mapping)}
        elif key == "title" and isinstance(value, str):
            continue
        elif isinstance(value, Mapping):
            cleaned[key] = _without_titles(value)
        else:
            cleaned[key] = value
    return cleaned
