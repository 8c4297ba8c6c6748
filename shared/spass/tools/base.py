"""A tool is a pydantic model of one call: its fields are the arguments, its docstring is the description, ``run`` does the work.

To add a tool, write one subclass of ``Tool`` and one line in ``registry.TOOLS``. The docstring and the field descriptions are
prompts: they are all that a model knows about the tool.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

from pydantic import Field

from spass.calls.scope import Scope
from spass.core.events import Nested
from spass.core.ids import DOCUMENT_ID, RAG_ID, ApprovalId, WorkspaceId
from spass.core.messages import Json, ToolSpec
from spass.tenancy.settings import Cascade
from spass.tenancy.strict_body import StrictBody
from spass.tools.confirm_tokens import ConfirmTokens, RecordResult
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.lineage_searcher import LineageSearcher

if TYPE_CHECKING:  # most of these import numpy, which the description of a tool does not need
    from spass.approvals.ending import Ending
    from spass.core.code_calls import Sandbox
    from spass.core.memory import Memory
    from spass.rag.index.embedding import Embedder
    from spass.rag.search.reader import Reader
    from spass.rag.write.delete import IndexDeleter
    from spass.rag.write.writer import Writer
    from spass.tools.chat_models import ChatModels
    from spass.tools.delegates import Delegates
    from spass.tools.editor.protocol import Editor
    from spass.tools.search.engine import SearchEngine
    from spass.workspaces.service import Workspaces

TOOL_UNAVAILABLE: Final = "tool_unavailable"
TOOL_FAILED: Final = "tool_failed"
NO_OPERATOR: Final = "no_operator"


class ToolError(Exception):
    """A tool failed. ``message`` is written for the model and says what to do instead. ``waiting`` and ``versions`` are what the
    call did before (``ToolOutcome``)."""

    def __init__(
        self,
        message: str,
        *,
        code: str = TOOL_FAILED,
        waiting: tuple[ApprovalId, ...] = (),
        versions: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.waiting = waiting
        self.versions = versions


@dataclass(frozen=True, slots=True)
class Rag:
    """The parts of ``rag`` that tools use."""

    embedder: "Embedder"
    reader: "Reader"
    writer: "Writer"
    deleter: "IndexDeleter"


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The result of a call with what belongs to it, which no model receives: ``ToolOutcome`` describes the fields."""

    result: Json
    rich: tuple[Json, ...] = ()
    approval: Mapping[str, Json] | None = None
    waiting: tuple[ApprovalId, ...] = ()
    versions: tuple[int, ...] = ()


ReportProgress: TypeAlias = Callable[[str], None]
"""Tell the client one line about the progress of a call. Call it in the event loop."""


ForwardEvent: TypeAlias = Callable[[Nested], None]
"""Tell the client about work within a call. Call it in the event loop."""


def ignore_progress(_text: str) -> None:
    """Do nothing: no client follows this call."""


def ignore_event(_event: Nested) -> None:
    """Do nothing: no client follows this call."""


def search_wikipedia() -> "SearchEngine":
    """Return the search engine of a gateway that names no provider."""
    from spass.tenancy.config import SearchConfig
    from spass.tools.search.engine import SearchEngine

    return SearchEngine(SearchConfig(), lambda _: None)


def open_workspaces() -> "Workspaces":
    """Return the workspaces of a process that keeps none in memory."""
    from spass.workspaces.service import Workspaces

    return Workspaces()


def no_editor() -> "Editor":
    """Refuse a call: this process has no editor.

    Raises:
        ToolError: always.
    """
    raise ToolError("This gateway has no editor. Say which changes you would make.", code=TOOL_UNAVAILABLE)


def no_delegates() -> "Delegates":
    """Refuse a call: this process runs no agents for tools.

    Raises:
        ToolError: always.
    """
    raise ToolError("This gateway has no delegates. Do the task yourself.", code=TOOL_UNAVAILABLE)


def refuse_code() -> "Sandbox":
    """Return the sandbox of a process that runs no code."""
    from spass.sandbox.none import no_sandbox

    return no_sandbox()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The dependencies of a tool call. A tool acts only within the tenant of ``scope``.

    ``record_result`` returns the writes that a change must include in its transaction, so that the result is stored with it.
    ``lineage_searcher`` creates the searcher at its first use; None outside of sessions. ``default_model`` is the model that made
    the call, if a model did. ``grants`` is what the agent's file lets its tools do; a call over HTTP has none. A tool that takes
    long calls ``report_progress`` while it runs. A tool whose work makes calls of its own passes their events to ``forward``, as
    work within the call ``call_id``. ``call`` is the call itself, while it runs. ``memory`` is that of the operator that runs.
    """

    scope: Scope
    rag: Rag
    cascade: Cascade
    confirm_tokens: ConfirmTokens = field(default_factory=ConfirmTokens)
    record_result: RecordResult | None = None
    lineage_searcher: Callable[[], LineageSearcher] | None = None
    chat_models: "Callable[[], ChatModels] | None" = None
    search_engine: "Callable[[], SearchEngine]" = search_wikipedia
    workspaces: "Callable[[], Workspaces]" = open_workspaces
    editor: "Callable[[], Editor]" = no_editor
    delegates: "Callable[[], Delegates]" = no_delegates
    sandbox: "Callable[[], Sandbox]" = refuse_code
    default_model: str | None = None
    report_progress: ReportProgress = ignore_progress
    forward: ForwardEvent = ignore_event
    call_id: str = ""
    call: "Tool | None" = None
    grants: Grants = NO_GRANTS
    memory: "Memory | None" = None

    def require_workspace(self) -> WorkspaceId:
        """Return the workspace of the turn.

        Raises:
            ToolError: the call has none.
        """
        if self.grants.workspace is None:
            raise ToolError("This tool needs an agent with a workspace. Answer without it.", code=TOOL_UNAVAILABLE)
        return self.grants.workspace

    def require_memory(self) -> "Memory":
        """Return the memory of the operator whose turn it is.

        Raises:
            ToolError: the call is not made in the turn of an operator.
        """
        if self.memory is None:
            raise ToolError("This tool needs an operator, and none runs here. Answer without it.", code=NO_OPERATOR)
        return self.memory


IndexIdField: TypeAlias = Annotated[str, Field(pattern=RAG_ID, description="The index, e.g. berlin-info.")]
DocumentIdField: TypeAlias = Annotated[
    str, Field(pattern=DOCUMENT_ID, max_length=128, description="The document's id, exactly as you were given it.")
]


class Tool(StrictBody):
    """One call of a tool, with validated arguments."""

    tool_name: ClassVar[str]
    category: ClassVar[str] = "other"
    """What the tool is for, in one word. Clients group tools by it, and the prompts of some agents name it."""
    timeout: ClassVar[float] = 10.0
    """Seconds after which a call is cancelled."""
    admin_only: ClassVar[bool] = False
    """True if only an admin's token may call the tool. A tool must not give its caller a right that the HTTP routes deny."""

    def time_limit(self, _: ToolContext, /) -> float:
        """Return the seconds after which this call is cancelled."""
        return self.timeout

    async def run(self, context: ToolContext, /) -> "Json | ToolReply":
        """Return the result as JSON, or a reply that also has what people see.

        Raises:
            ToolError: the model reads its message instead of a result.
            SpassError: the model reads its code and message.
        """
        raise NotImplementedError

    async def run_approved(self, context: ToolContext, effect: Mapping[str, Json], ending: "Ending", /) -> "Json | ToolReply":
        """Run the call that was stored with ``effect``, and end its approval in the transaction of the change. Return the result.
        By default, the effect is the change of a workspace.

        Raises:
            ToolError, SpassError: the call failed; nothing was changed, and the approval has not ended.
            ApprovalDecided: another decision ended the approval.
        """
        from spass.tools.workspace_change import run_approved_change

        return await run_approved_change(context, effect, ending)

    @classmethod
    @cache
    def spec(cls) -> ToolSpec:
        """Return the tool as a model sees it. Cached: building it takes about as long as a read of the table."""
        schema = cls.model_json_schema()
        parameters = {key: value for key, value in schema.items() if key not in ("title", "description", "$defs")}
        description = inspect.cleandoc(cls.__doc__ or "")
        return ToolSpec(cls.tool_name, description, _inline_schema(parameters, schema.get("$defs", {})), category=cls.category)


_REFERENCE: Final = "#/$defs/"


def _inline_schema(schema: Mapping[str, Json], definitions: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return ``schema`` without references, generated titles and null defaults.

    Not every provider follows references. Pydantic's titles and null defaults cost tokens. A property named ``title`` stays.
    """
    output: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            output[key] = {name: _inline_value(field, definitions) for name, field in value.items()}
        elif (key == "title" and isinstance(value, str)) or (key == "default" and value is None):
            continue
        elif key == "$ref" and isinstance(value, str):
            output |= _inline_schema(definitions[value.removeprefix(_REFERENCE)], definitions)
        else:
            output[key] = _inline_value(value, definitions)
    return output


def _inline_value(value: Json, definitions: Mapping[str, Mapping[str, Json]]) -> Json:
    if isinstance(value, Mapping):
        return _inline_schema(value, definitions)
    return [_inline_value(inner, definitions) for inner in value] if isinstance(value, list) else value
