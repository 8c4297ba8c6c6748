"""The protocol of an editor: texts and a message in, changed texts out.

An engine is one class that implements ``Editor``. It knows neither workspaces nor model providers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from spass.calls.scope import ReportProgress
from spass.core.messages import Message

EditFormat: TypeAlias = Literal["diff", "whole"]
"""The form in which the model writes edits: blocks of lines to search and replace, or whole files."""

Ask: TypeAlias = Callable[[Sequence[Message]], Awaitable[str]]
"""Send a conversation to the model and return its answer. An exception of this function ends the edit and reaches the caller
of ``Editor.edit`` unchanged."""

MayEdit: TypeAlias = Callable[[str], bool]
"""Return True if the edit may change or create the file at this path."""


@dataclass(frozen=True, slots=True)
class EditRequest:
    """One edit. Paths are relative, with ``/`` between segments.

    Texts use any newlines; the editor keeps them. ``create`` names files that the edit may create and that do not exist yet.
    ``parent_log_id`` is the audit record under which the model calls are recorded. ``seconds`` limits the whole edit. Edits that
    wait are served by ``tenant_id`` in turn.
    """

    tenant_id: str
    message: str
    files: Mapping[str, str]
    read_only: Mapping[str, str] = field(default_factory=dict)
    create: tuple[str, ...] = ()
    format: EditFormat = "diff"
    run_id: str = ""
    parent_log_id: str = ""
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class EditResult:
    """``files``: the whole new text of each file that the edit changed or created. ``answer``: the model's last answer."""

    files: Mapping[str, str]
    answer: str


class Editor(Protocol):
    """An engine that edits texts."""

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        """Return what the edit changed. Each path of the result is in ``files`` or ``create``, or ``may_edit`` accepts it.

        ``report`` receives a line for each stage.

        Raises:
            ToolError: ``edit_failed``, ``edit_timeout`` or ``tool_unavailable``, with a message for the model.
        """
        ...
