"""The tool ``aider_edit``."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from spass.calls.defence import MAX_CHARACTERS
from spass.calls.scope import ReportProgress, Scope
from spass.core.messages import CUT_OFF, Json, Message, Role
from spass.core.tasks import run_in_worker_thread
from spass.core.text_checks import reject_blank
from spass.models.types import ChatReply
from spass.tools.agent_workspace import AgentWorkspace
from spass.tools.base import CallResult, Tool, ToolError
from spass.tools.chat_models import ChatModels
from spass.tools.editor.command_line import is_command
from spass.tools.editor.commands import run_command
from spass.tools.editor.protocol import Ask, Editor, EditRequest
from spass.tools.editor.texts import EditPaths, EditTexts
from spass.tools.gate import check_can_wait
from spass.tools.workspace_change import apply_change, run_approved_change
from spass.workspaces.tree import TreeAt

if TYPE_CHECKING:  # only a gated call needs it
    from spass.approvals.ending import Ending

MAX_PATHS: Final = 100

_COMMIT_SECONDS: Final = 5.0
"""Seconds that an edit leaves before the deadline of the turn."""
_MIN_EDIT_SECONDS: Final = 1.0
MAX_SILENCE: Final = 4.0
"""Seconds without a line of progress."""
_MAX_EXCERPT: Final = 500  # characters


class AiderEdit(Tool):
    """Changes files of the workspace as a message asks, and commits the change as one version. Another model makes the edit.

    Name in files every file that the edit may change or create, at most 100; it changes no other. Name in read_only_files what it
    needs to see besides. The other model knows only the message and these files: nothing of this conversation. So say exactly
    what to change, where, and how the result should behave. The result has the new version, the diff of each changed file and the
    other model's remark; a version of null means that nothing changed. Check the diff before you report success.
    A message that begins with / is a command about versions, which no model sees. /undo takes back the newest change, and /diff
    shows it. /git status, log, diff, show, mv, rm, restore and revert work on versions as git does on commits, e.g. /git log -5,
    /git show 7, /git restore --source=7 src/main.py. A command names its paths itself; files are then only checked to be paths.
    There is no shell, and nothing from the workspace can be executed.
    Example: {"message": "Add a docstring to main() that says what it prints.", "files": ["src/main.py"]}.
    """

    category: ClassVar[str] = "workspace"
    timeout: ClassVar[float] = 600.0

    message: Annotated[
        str, AfterValidator(reject_blank), Field(description="What to change, completely and in plain words. Or one command.")
    ]
    files: Annotated[
        list[str],
        Field(min_length=1, max_length=MAX_PATHS, description="The files to change or create, e.g. src/main.py."),
    ]
    read_only_files: Annotated[
        list[str],
        Field(max_length=MAX_PATHS, default_factory=list, description="Files that the edit needs to see and does not change."),
    ]

    async def run(
        self, scope: Scope, workspace: AgentWorkspace, editor: Editor, models: ChatModels, default_model: str | None, /
    ) -> CallResult:
        if is_command(self.message):
            return await run_command(workspace, self, self.message, self.files)
        if self.tool_name in workspace.grants.approval:
            check_can_wait(scope)
        paths = EditPaths.parse(workspace.grants, self.files, self.read_only_files)
        async with _report_while_working(scope.reports.progress) as report:
            at, texts = await self._read(workspace, paths, models)
            ask = _ask(scope, models, default_model)
            result = await editor.edit(self._request(workspace, texts), ask, texts.may_edit, report)
            size = sum(map(len, result.files.values()))
            change = await run_in_worker_thread(size, lambda files: texts.change(files, at), result.files)
            return await apply_change(workspace, self, change, message=self.message, answer=result.answer)

    async def run_approved(
        self, effect: Mapping[str, Json], ending: "Ending", _scope: Scope, workspace: AgentWorkspace, /, *_others: object
    ) -> CallResult:
        return await run_approved_change(workspace, effect, ending)

    async def _read(self, workspace: AgentWorkspace, paths: EditPaths, models: ChatModels) -> tuple[TreeAt, EditTexts]:
        at = await workspace.stored.newest()
        existing = paths.existing(at)
        bodies = await workspace.stored.read_many(at, existing)
        size = sum(map(len, bodies.values()))
        return at, await run_in_worker_thread(size, lambda read: EditTexts.of(paths, read, models.model_round_trip), bodies)

    def _request(self, workspace: AgentWorkspace, texts: EditTexts) -> EditRequest:
        settings, scope = workspace.grants.editor, workspace.scope
        return EditRequest(
            message=self.message,
            files=texts.to_change,
            read_only=texts.to_read,
            create=texts.to_create,
            format=settings.format,
            run_id=scope.run_id,
            parent_log_id=scope.parent or "",
            seconds=max(_MIN_EDIT_SECONDS, min(settings.timeout, scope.deadline.remaining() - _COMMIT_SECONDS)),
            tenant_id=scope.caller.tenant,
        )


def _ask(scope: Scope, models: ChatModels, default_model: str | None) -> Ask:
    """Return the function that sends a conversation of the edit to the agent's model, as calls within this call."""
    model = models.choose(scope, None, default_model)
    deeper = replace(scope, depth=scope.depth + 1)

    async def ask(messages: Sequence[Message]) -> str:
        return _text_of(await models.ask(deeper, model, divide_long_messages(messages), max_tokens=None, temperature=0.0))

    return ask


def _text_of(reply: ChatReply) -> str:
    """Return the text of a reply that is complete: half of a file or of a block must not be applied."""
    if reply.refusal:
        raise ToolError(f"The model refused to make the edit: {reply.refusal[:_MAX_EXCERPT]}", code="edit_failed")
    if reply.finish_reason in CUT_OFF:
        raise ToolError(
            "The model's answer was cut off, so nothing was changed. Ask for a smaller edit, or for fewer files.",
            code="edit_failed",
        )
    return reply.message.content


_BETWEEN: Final = "The message continues."
"""The other side says this between two parts, because many chat templates require that user and assistant take turns."""


def divide_long_messages(messages: Sequence[Message], limit: int = MAX_CHARACTERS) -> list[Message]:
    """Return the same conversation in messages of at most ``limit`` characters. A part ends at the end of a line, if possible."""
    return [part for message in messages for part in _parts(message, limit)]


def _parts(message: Message, limit: int) -> Iterator[Message]:
    other, rest = Role.USER if message.role is Role.ASSISTANT else Role.ASSISTANT, message.content
    while len(rest) > limit:
        end = rest.rfind("\n", 0, limit) + 1 or limit
        yield replace(message, content=rest[:end])
        yield Message(other, _BETWEEN)
        rest = rest[end:]
    yield replace(message, content=rest)


@asynccontextmanager
async def _report_while_working(report: ReportProgress) -> AsyncIterator[ReportProgress]:
    """Repeat the last line, with the seconds since the beginning, whenever nothing was reported for four seconds while the body
    runs. The body reports by the function that it gets."""
    started = last = time.monotonic()
    stage = "Still at work…"

    def report_now(text: str) -> None:
        nonlocal last, stage
        last, stage = time.monotonic(), text
        report(text)

    async def work() -> None:
        nonlocal last
        while True:
            await asyncio.sleep(max(0.0, last + MAX_SILENCE - time.monotonic()))
            if time.monotonic() - last >= MAX_SILENCE:
                last = time.monotonic()
                report(f"{stage} {last - started:.0f} s")

    task = asyncio.create_task(work())
    try:
        yield report_now
    finally:
        task.cancel()
