"""What a tool is: a pydantic model of one call. Its fields are the arguments, its docstring the description, ``run`` does it.

To add a tool, write one subclass of ``Tool`` and one line in ``registry.TOOLS``. Docstring and field descriptions are prompts:
they are all a model knows about the tool.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

from spass.calls.scope import Scope
from spass.core.messages import Json, ToolSpec
from spass.tenancy.settings import Cascade
from spass.tenancy.strict_body import StrictBody
from spass.tools.confirm_tokens import ConfirmTokens, RecordResult
from spass.tools.lineage_searcher import LineageSearcher

if TYPE_CHECKING:  # most of them import numpy, which the description of a tool does not need
    from spass.rag.index.catalog import IndexCatalog
    from spass.rag.index.embedding import Embedder
    from spass.rag.search.reader import Reader
    from spass.rag.write.delete import IndexDeleter
    from spass.rag.write.patch import Patcher
    from spass.rag.write.writer import Writer


class ToolError(Exception):
    """A tool could not do what it was asked. ``message`` is written for the model and says what to do instead."""

    def __init__(self, message: str, *, code: str = "tool_failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Rag:
    """The parts of ``rag`` that tools use."""

    embedder: "Embedder"
    catalog: "IndexCatalog"
    reader: "Reader"
    writer: "Writer"
    patcher: "Patcher"
    deleter: "IndexDeleter"


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may act with. A tool acts inside the tenant of ``scope`` only. What it changes it changes together with the
    writes that ``keep`` its result, if there are any. ``lineage_searcher`` is made when it is first asked for; without it
    nothing was
    ever compacted."""

    scope: Scope
    rag: Rag
    cascade: Cascade
    confirmations: ConfirmTokens = field(default_factory=ConfirmTokens)
    keep: RecordResult | None = None
    lineage_searcher: Callable[[], LineageSearcher] | None = None


class Tool(StrictBody):
    """One call of a tool, its arguments validated."""

    tool_name: ClassVar[str]
    timeout: ClassVar[float] = 10.0
    """Seconds after which a call is given up."""
    admin_only: ClassVar[bool] = False
    """True if only an admin's token may call it. A tool gives no right that its caller lacks on the HTTP routes."""

    async def run(self, context: ToolContext, /) -> Json:
        """The result, as JSON.

        Raises:
            ToolError: what the model is told instead of a result.
            SpassError: a room below said no; the model is told its code and message.
        """
        raise NotImplementedError

    @classmethod
    @cache
    def spec(cls) -> ToolSpec:
        """The tool as a model sees it. Made once: each takes about as long as a read of the table."""
        schema = cls.model_json_schema()
        shown = {key: value for key, value in schema.items() if key not in ("title", "description", "$defs")}
        return ToolSpec(cls.tool_name, inspect.cleandoc(cls.__doc__ or ""), _inlined_schema(shown, schema.get("$defs", {})))


_REFERENCE: Final = "#/$defs/"


def _inlined_schema(schema: Mapping[str, Json], definitions: Mapping[str, Json]) -> dict[str, Json]:
    """``schema`` as models read it best: in one piece (not every provider follows references), and without what repeats names or
    says nothing and costs tokens, pydantic's generated titles and defaults of null. A property named ``title`` stays."""
    cleaned: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            cleaned[key] = {name: _plain(field, definitions) for name, field in value.items()}
        elif (key == "title" and isinstance(value, str)) or (key == "default" and value is None):
            continue
        elif key == "$ref" and isinstance(value, str):
            cleaned |= _inlined_schema(_object(definitions[value.removeprefix(_REFERENCE)]), definitions)
        else:
            cleaned[key] = _plain(value, definitions)
    return cleaned


def _plain(value: Json, definitions: Mapping[str, Json]) -> Json:
    if isinstance(value, Mapping):
        return _inlined_schema(value, definitions)
    return [_plain(inner, definitions) for inner in value] if isinstance(value, list) else value


def _object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise TypeError("a definition in a JSON Schema is an object")
    return value
