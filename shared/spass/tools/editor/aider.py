"""Aider as an editor: one child process for each edit. Aider is on the child's path only."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from spass.calls.scope import ReportProgress
from spass.core.messages import Json, Message
from spass.core.slots import Slots
from spass.sandbox.child_disk import CHILD_DISKS, ChildDisk
from spass.sandbox.child_process import ChildFailed, ChildProcess
from spass.sandbox.scratch_folder import scratch_folder
from spass.tools.base import ToolError
from spass.tools.editor.lines import Blocked, Crashed, CreateRequest, Failed, ModelRequest, Progress, Result, read_line
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit

MAX_MODEL_REQUESTS: Final = 8
MAX_REQUEST: Final = 4 * 2**20
"""Characters of one model request: twice the files of an edit. The child is not trusted, and each request costs money."""
MAX_CHILDREN: Final = 8
"""Edits of one tenant in one process at the same time, see ``Slots``. Each child takes about 100 MB of memory, and delegates can
ask for 64 edits at once."""
MAX_FILES: Final = 10_000
"""Files and folders. An edit of 200 paths with 32 segments each needs 6,400."""
_TICK_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 3.0
_STAGES: Final = {"applying": "Applying the edit", "correcting": "The edit did not match; asking the model to correct it"}
_DEPLOYED: Final = "/opt/editor"
_FOLDER_PREFIX: Final = "spass-edit-"


class AiderEditor:
    """Edits with Aider. ``MAX_CHILDREN`` edits can run at the same time, and one of another tenant besides; others wait, within
    their time limit."""

    def __init__(self, packages: Path, *, engine: str = "spass.tools.editor.child.engine", temporary: Path | None = None) -> None:
        """``packages``: the folder of Aider's packages. ``engine``: the module that the child runs. ``temporary``: the folder in
        which each edit gets its folder; None is the system's.
        """
        self._packages: Final = packages
        self._engine: Final = engine
        self._temporary: Final = temporary
        self._children: Final = Slots(MAX_CHILDREN)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "AiderEditor":
        """Return the editor whose packages are in the folder ``SPASS_EDITOR``, by default that of a deployment."""
        return cls(Path(environment.get("SPASS_EDITOR") or _DEPLOYED))

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        """Return what the edit changed. See ``Editor.edit``."""
        if not (self._packages / "aider").is_dir():
            raise ToolError(
                "The editor is not installed on this gateway. Files can be read, but not edited.", code="tool_unavailable"
            )
        limit = asyncio.timeout(request.seconds)
        try:
            async with limit, self._child_slot(request.tenant_id, _Reporter(report)) as reporter:
                return await self._run(_Edit(request, ask, may_edit), reporter)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"The edit took longer than {request.seconds:g} s. Name fewer files, or ask for a smaller change."
            raise ToolError(message, code="edit_timeout") from None
        except ChildFailed as failure:
            raise _failed(f"The editor {failure}.") from None

    @asynccontextmanager
    async def _child_slot(self, tenant_id: str, reporter: "_Reporter") -> AsyncIterator["_Reporter"]:
        """Wait until one child more may run, and tell the client that the edit waits."""
        try:
            if not self._children.has_free(tenant_id):
                reporter.start("Waiting for other edits")
            async with self._children.hold(tenant_id):
                reporter.stop()
                yield reporter
        finally:
            reporter.stop()

    async def _run(self, edit: "_Edit", reporter: "_Reporter") -> EditResult:
        with CHILD_DISKS.open_one(MAX_FILES) as disk:
            async with scratch_folder(_FOLDER_PREFIX, self._temporary) as folder:
                return await self._run_child(edit, reporter, folder, disk)

    async def _run_child(self, edit: "_Edit", reporter: "_Reporter", folder: Path, disk: ChildDisk) -> EditResult:
        child = ChildProcess(self._command(), folder=folder, environment=self._environment(folder))
        disk.attach(child, folder)
        disk_limit = asyncio.create_task(CHILD_DISKS.limit(disk))
        try:
            reporter.start("Starting the editor")
            await child.connect()
            return await edit.converse(child, reporter)
        finally:
            disk_limit.cancel()
            reporter.stop()
            child.kill()

    def _command(self) -> list[str]:
        module = ["-m", "spass.tools.editor.child", self._engine, str(os.getpid())]
        return [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", *module]

    def _environment(self, folder: Path) -> dict[str, str]:
        code = Path(__file__).resolve().parents[3]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": f"{self._packages.resolve()}{os.pathsep}{code}",
        }
        if libraries := os.environ.get("LD_LIBRARY_PATH"):  # Lambda's interpreter does not start without it
            environment["LD_LIBRARY_PATH"] = libraries
        return environment


class _Edit:
    """One edit: the gateway's side of the conversation with the child."""

    def __init__(self, request: EditRequest, ask: Ask, may_edit: MayEdit) -> None:
        self._request: Final = request
        self._ask: Final = ask
        self._may_edit: Final = may_edit
        self._model_requests = 0

    async def converse(self, child: ChildProcess, reporter: "_Reporter") -> EditResult:
        """Send the edit, answer the child's requests, and return its result.

        Raises:
            ToolError: the child reports a failure, or asks for more than it may.
            ChildFailed: the child ended too early, or wrote something else.
        """
        child.send(self._to_json())
        while True:
            match read_line(await child.receive()):
                case ModelRequest() as wanted:
                    self._model_requests += 1
                    if self._model_requests > MAX_MODEL_REQUESTS:
                        raise _failed(f"The edit needs more than {MAX_MODEL_REQUESTS} model calls. Ask for a smaller change.")
                    if sum(len(text) for _, text in wanted.messages) > MAX_REQUEST:
                        raise _failed("The conversation with the model became too long. Name fewer files.")
                    reporter.show("Asking the model")
                    child.send({"answer": await self._ask([Message(role, text) for role, text in wanted.messages])})
                case CreateRequest(path=path):
                    child.send({"allowed": self._may_create(path)})
                case Progress(stage=stage):
                    reporter.show(_STAGES[stage])
                case Failed(message=message):
                    raise _failed(message)
                case Crashed(error=error):
                    raise _failed(f"The editor failed with {error}.")
                case Blocked(event=event):
                    raise _failed(f"The editor was stopped, because it tried to do what no edit may do: {event}.")
                case Result() as result:
                    return self._check(result)

    def _to_json(self) -> dict[str, Json]:
        request = self._request
        return {
            "message": request.message,
            "files": dict(request.files),
            "read_only": dict(request.read_only),
            "create": list(request.create),
            "format": request.format,
            "run_id": request.run_id,
            "parent_log_id": request.parent_log_id,
            "seconds": request.seconds,
        }

    def _check(self, result: Result) -> EditResult:
        """Return the texts that differ from those of the request.

        Raises:
            ToolError: the child wrote a file that it may not write.
        """
        named = {*self._request.files, *self._request.create}
        for path in result.files:
            if path not in named and not self._may_create(path):
                raise _failed("The editor wrote a file that this edit may not change.")
        return EditResult(
            {path: text for path, text in result.files.items() if text != self._request.files.get(path)}, result.answer
        )

    def _may_create(self, path: str) -> bool:
        """Return True if the edit may create a file that it does not name."""
        pure = PurePosixPath(path)
        is_relative = str(pure) == path and not pure.is_absolute() and not {"..", "."} & set(pure.parts)
        return is_relative and path not in self._request.read_only and self._may_edit(path)


class _Reporter:
    """Tell the client what the edit does: at each new stage, and every 3 seconds."""

    def __init__(self, report: ReportProgress) -> None:
        self._report: Final = report
        self._loop: Final = asyncio.get_running_loop()
        self._started: Final = time.monotonic()
        self._stage = ""
        self._shown_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, stage: str) -> None:
        """Show the first stage."""
        self.show(stage)
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def show(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            self._send(f"{stage}…")

    def _send(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._report(text)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        if time.monotonic() - self._shown_at >= _REPORT_SECONDS:
            self._send(f"{self._stage}… {time.monotonic() - self._started:.0f} s")


def _failed(message: str) -> ToolError:
    return ToolError(message, code="edit_failed")
