"""A workspace, an agent's grants and an editor that does what a test says, behind the real toolbox."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spass.calls.scope import NO_REPORTS, CallReports, CurrentSession, ReportProgress, Scope
from spass.core.effects import ToolOutcome
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Json, ToolCall
from spass.store import keys
from spass.store.writes import Put
from spass.testing.model import ScriptedModel
from spass.tools.chat_models import ChatModels
from spass.tools.editor.protocol import Ask, Editor, EditRequest, EditResult, MayEdit
from spass.tools.grants import EditorSettings, Grants, PathPatterns
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn
from spass.workspaces.head import read_live_head
from spass.workspaces.versions import Version, list_versions
from tests.unit.calls.scripted_provider import CONFIG, calls_of, make_scope
from tests.unit.tools.fakes import toolbox_of
from tests.unit.workspaces.harness import DEFAULT, WorkspaceHarness

Work = Callable[[EditRequest, Ask, MayEdit, ReportProgress], Awaitable[EditResult]]


def replace_text(old: str, new: str) -> Work:
    """Return an edit that replaces a text in all files that it may change."""

    async def work(request: EditRequest, *_: object) -> EditResult:
        changed = {name: text.replace(old, new) for name, text in request.files.items() if old in text}
        return EditResult(changed, "Done.")

    return work


def write_texts(texts: Mapping[str, str], answer: str = "Done.") -> Work:
    """Return an edit that results in ``texts``."""

    async def work(*_: object) -> EditResult:
        return EditResult(texts, answer)

    return work


@dataclass
class ScriptedEditor:
    """An ``Editor`` that records its requests."""

    work: Work = field(default_factory=lambda: write_texts({}))
    requests: list[EditRequest] = field(default_factory=list)

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        self.requests.append(request)
        return await self.work(request, ask, may_edit, report)


@dataclass
class EditHarness:
    """One agent with a workspace. ``call`` runs a call of ``aider_edit`` as its model made it."""

    editor: ScriptedEditor = field(default_factory=ScriptedEditor)
    model: ScriptedModel = field(default_factory=ScriptedModel)
    files: WorkspaceHarness = field(default_factory=WorkspaceHarness)
    grants: Grants = field(default_factory=lambda: grants())

    def scope(self, *, depth: int = 0) -> Scope:
        session = CurrentSession(SessionId("ses_1"), turn_id="trn_1", message_id="m-1", workspace=DEFAULT)
        scope = make_scope(self.files.store, depth=depth)
        return replace(scope, agent=AgentName("dir-code"), current_session=session)

    def toolbox(self, editor: Editor | None = None) -> Toolbox:
        """Return the tools with ``editor``, or with the scripted one."""
        models = ChatModels(calls_of(self.model), CONFIG)
        return toolbox_of(tool_models=models, workspaces=self.files.workspaces, editor=editor or self.editor)

    async def hold_session(self) -> None:
        """Hold the session of ``scope`` for its turn, as a turn does while it runs."""
        head = keys.session_head(self.files.store.tenant, SessionId("ses_1"))
        await self.files.store.table.write(Put(head, {"hold": {"owner": "trn_1"}}))

    async def call(
        self,
        message: str,
        files: Sequence[str] = ("src/main.py",),
        *,
        report: ReportProgress = NO_REPORTS.progress,
        toolbox: Toolbox | None = None,
        **more: Json,
    ) -> ToolOutcome:
        return await self.run({"message": message, "files": [*files], **more}, report=report, toolbox=toolbox)

    async def run(
        self,
        arguments: Mapping[str, Json],
        *,
        report: ReportProgress = NO_REPORTS.progress,
        scope: Scope | None = None,
        toolbox: Toolbox | None = None,
    ) -> ToolOutcome:
        call = ToolCall("call_1", "aider_edit", json.dumps(arguments, ensure_ascii=False))
        return await (toolbox or self.toolbox()).execute(
            scope or self.scope(),
            call,
            CallReports(call.id, report),
            allowed=["aider_edit"],
            turn=ToolTurn("small", self.grants),
        )

    async def versions(self) -> Sequence[Version]:
        """Return all versions, the newest first."""
        head = await read_live_head(self.files.store, self.files.workspace)
        return await list_versions(self.files.store, self.files.workspace, head.generation, newest_first=True)

    async def version(self) -> int:
        return (await read_live_head(self.files.store, self.files.workspace)).version


def grants(
    *, read: Sequence[str] = ("**",), write: Sequence[str] = ("**",), editor: EditorSettings | None = None, workspace: bool = True
) -> Grants:
    """Return what an agent with these paths may do."""
    paths = PathPatterns(read=tuple(read), write=tuple(write))
    return Grants(workspace=DEFAULT if workspace else None, paths=paths, editor=editor or EditorSettings())


def result_of(outcome: ToolOutcome) -> dict[str, Any]:
    """Return the result of a call that succeeded."""
    assert isinstance(outcome.result, dict)
    assert outcome.ok, outcome.result
    return outcome.result


def error_of(outcome: ToolOutcome) -> tuple[str, str]:
    """Return the code and the message of a call that failed."""
    assert not outcome.ok
    assert isinstance(outcome.result, dict)
    error: Any = outcome.result["error"]
    return error["code"], error["message"]
