"""An agent whose calls wait, in a turn of a session, and a person who decides. Everything is in memory."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import Field

from spass.agents.approving import Decisions
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.approvals.changes import read_changes
from spass.approvals.ending import Ending
from spass.approvals.record import Approval, ApprovalStatus
from spass.approvals.responses import ApprovalView, DecideApproval
from spass.approvals.store import read_approval, read_approvals
from spass.calls.scope import CurrentSession, Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import IndexNotFound
from spass.core.ids import AgentName, ApprovalId, IndexId, SessionId, TenantId, UserId, WorkspaceId
from spass.core.messages import Json, ToolCall
from spass.core.time import Deadline, now_s
from spass.rag.index.documents import NewDocument
from spass.store import keys
from spass.store.writes import Put
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.rag import build_rag
from spass.tools.agent_workspace import AgentWorkspace
from spass.tools.base import CallResult, Rag, Tool
from spass.tools.grants import Grants, PathPatterns
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import Needs, ToolClasses, Toolset, ToolTurn, gateway_toolsets
from spass.tools.workspace_change import apply_change, run_approved_change
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import WorkspacePath, parse_path
from spass.workspaces.service import Workspaces
from tests.simulated.memory import WITH_QUEUE
from tests.unit.rag.conftest import ArithmeticCalls, config_with
from tests.unit.scopes import scope_of
from tests.unit.tools.fakes import FakeServices

SESSION: Final = SessionId("ses_" + "1" * 26)
TURN: Final = "turn_1"
NOTES: Final = IndexId("notes")
DEFAULT: Final = WorkspaceId("default")
GATED: Final = ("rag_doc_append", "rag_doc_delete", "rag_doc_patch", "rag_index_create", "rag_index_delete", "memory_write")
GRANTS: Final = Grants(workspace=DEFAULT, paths=PathPatterns(write=("src/",)), approval=(*GATED, "deletes"))


class WriteFiles(Tool):
    """Write or delete files; each text is written ``times`` times. With a ``version``, bring that version back instead."""

    files: dict[str, str | None] = Field(default={})
    version: int | None = None
    times: int = 1

    async def run(self, _scope: Scope, workspace: AgentWorkspace, /) -> CallResult:
        if self.version is not None:
            at = await workspace.stored.tree(self.version)
            return await apply_change(workspace, self, Change.restore(at), message="/undo", answer="", brings_back=True)
        files = {parse_path(path): self.times * text.encode() if text is not None else None for path, text in self.files.items()}
        return await apply_change(workspace, self, Change.of(files), message="edit", answer="Done.")

    async def run_approved(
        self, effect: Mapping[str, Json], ending: Ending, _scope: Scope, workspace: AgentWorkspace, /
    ) -> CallResult:
        return await run_approved_change(workspace, effect, ending)


SPEC: Final = AgentSpec(name="clerk", model="small", tools=(*GATED, "write_files"), grants=GRANTS)


@dataclass
class Desk:
    """The agent ``clerk`` and its user ``ana``. ``agents`` are the agents' files at the time of a decision."""

    aws: MemoryAws = field(default_factory=lambda: MemoryAws(WITH_QUEUE))
    agents: AgentRegistry = field(default_factory=lambda: AgentRegistry([SPEC]))
    ahead: float = 0.0
    rag: Rag = field(init=False)
    toolbox: Toolbox = field(init=False)
    workspaces: Workspaces = field(default_factory=Workspaces)
    cascade: Cascade = field(init=False)

    def __post_init__(self) -> None:
        config = config_with()
        self.rag = build_rag(ArithmeticCalls(), config)
        self.cascade = Cascade(config)
        services = FakeServices(rag=self.rag, cascade=self.cascade, workspaces=self.workspaces)

        def open_toolsets(turn: ToolTurn) -> Sequence[Toolset]:
            def needs(scope: Scope) -> Needs:
                return (AgentWorkspace.open(scope, turn.grants, self.workspaces),)

            return (*gateway_toolsets(services, turn), ToolClasses(("write_files",), needs, load=lambda _: WriteFiles))

        self.toolbox = Toolbox(open_toolsets)

    @classmethod
    async def open(cls) -> "Desk":
        """Return a desk with an index of two documents, a workspace of two files and a session that the turn holds."""
        desk = cls()
        documents = [NewDocument(id="a", text="alpha"), NewDocument(id="b", text="beta")]
        await desk.rag.writer.replace(desk.scope(), NOTES, documents)
        await desk.write({"src/a.py": "a\n", "src/b.py": "b\n"})
        head = keys.session_head(desk.scope().store.tenant, SESSION)
        await desk.scope().store.table.write(Put(head, {"hold": {"owner": TURN}}))
        return desk

    def scope(self, user: str = "ana", *, admin: bool = True) -> Scope:
        """Return the scope of a new request."""
        return scope_of(self.aws.for_tenant(TenantId("demo")), user, admin=admin, route="/a1/approvals/{approval_id}")

    async def ask(self, tool: str, arguments: Mapping[str, Any], grants: Grants = GRANTS) -> ToolOutcome:
        """Let the agent's model make a call in its turn."""
        scope = replace(self.scope(), agent=AgentName("clerk"), current_session=CurrentSession(SESSION, TURN, "m1", DEFAULT))
        call = ToolCall("call_1", tool, json.dumps(arguments))
        return await self.toolbox.execute(scope, call, allowed=SPEC.tools, turn=ToolTurn(grants=grants))

    async def wait_for(self, tool: str, arguments: Mapping[str, Any], grants: Grants = GRANTS) -> ApprovalId:
        """Let the model make a call that waits. Return the id of its approval."""
        outcome = await self.ask(tool, arguments, grants)
        assert outcome.ok, outcome.result
        (approval,) = outcome.waiting
        return approval

    async def decide(self, approval: ApprovalId, decision: str = "approve", user: str = "ana", **more: Any) -> ApprovalView:
        """Decide as ``user``, who has read the whole change, in a process of its own."""
        decisions = Decisions(lambda: self.agents, lambda: self.toolbox, lambda: now_s() + self.ahead)
        seen = more.pop("seen", None) or (await self.read_to_the_end(approval, user) if decision == "approve" else None)
        body = DecideApproval.model_validate({"decision": decision, "reason": more.pop("reason", None), "seen": seen})
        return await decisions.decide(self.scope(user, **more), approval, body)

    async def read_to_the_end(self, approval: ApprovalId, user: str = "ana") -> str | None:
        """Read the changes that the preview does not show. Return the last cursor."""
        store, cursor = self.scope(user).store, None
        if (await read_approval(store, UserId(user), approval)).is_shown_whole:
            return None
        while True:
            page = await read_changes(store, UserId(user), approval, now_s() + self.ahead, cursor=cursor, limit=100)
            if page.next_cursor is None:
                return cursor
            cursor = page.next_cursor

    async def write(self, files: Mapping[str, str | None]) -> None:
        """Change the workspace without an agent."""
        change = Change.of({parse_path(path): text.encode() if text is not None else None for path, text in files.items()})
        await self.workspaces.open(self.scope().store, DEFAULT).commit(change, Author(), Deadline.after(30))

    async def files(self) -> dict[str, str]:
        """Return the files of the newest version, as another process reads them."""
        workspaces, store = Workspaces(), self.scope().store
        at = await workspaces.open(store, DEFAULT).newest()
        bodies = await workspaces.open(store, DEFAULT).read_many(at, [WorkspacePath(path) for path in at.tree.files])
        return {path: body.decode() for path, body in sorted(bodies.items())}

    async def state(self) -> Json:
        """Return everything that calls can change, with the versions, as another process reads it."""
        scope = self.scope()
        version = (await Workspaces().open(scope.store, DEFAULT).newest()).version
        memory = (await Cascade(config_with()).read(scope.store)).config.memory
        return {"index": await self._index(scope), "files": await self.files(), "version": version, "memory": memory}

    async def _index(self, scope: Scope) -> Json:
        """Return the version of the index and its documents, or None if it was deleted."""
        reader = build_rag(ArithmeticCalls(), config_with()).reader
        try:
            page = await reader.documents(scope, NOTES, None, 100)
        except IndexNotFound:
            return None
        answer = await reader.query(scope, NOTES, "alpha", 1)
        return [answer.version, *(f"{document.id}: {document.text} {document.metadata}" for document in page.documents)]

    async def read(self, approval: ApprovalId) -> Approval:
        return await read_approval(self.scope().store, UserId("ana"), approval)

    async def stored(self) -> list[Approval]:
        """Return all approvals of the user."""
        store = self.scope().store
        items = await store.table.query(keys.approvals_partition(store.tenant, UserId("ana")))
        return [*(await read_approvals(store, UserId("ana"), [ApprovalId(str(item["sk"])) for item in items])).values()]

    async def status(self, approval: ApprovalId) -> ApprovalStatus:
        return (await self.read(approval)).status


Work = Callable[[Desk], Awaitable[object]]
