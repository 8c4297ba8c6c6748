"""Aider as an editor: one child process for each edit. Aider is on the child's path only."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from spass.calls.scope import ReportProgress
from spass.core.messages import Message, Role
from spass.core.slots import Slots
from spass.sandbox.child_disk import start_in_folder
from spass.sandbox.child_process import ChildFailed, ChildProcess
from spass.tools.base import ToolError
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit

MAX_MODEL_REQUESTS: Final = 8
MAX_REQUEST: Final = 4 * 2**20
"""Characters of one model request: twice the files of an edit. The child is not trusted, and each request costs money."""
MAX_CHILDREN: Final = 8
"""Edits of one tenant in one process at the same time, see ``Slots``. Each child takes about 100 MB of memory, and delegates can
ask for 64 edits at once."""
MAX_FILES: Final = 10_000
"""Files and folders. An edit of 200 paths with 32 segments each needs 6,400."""
_STAGES: Final = {"applying": "Applying the edit", "correcting": "The edit did not match; asking the model to correct it"}
_DEPLOYED: Final = "/opt/editor"
_FOLDER_PREFIX: Final = "spass-edit-"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ready(_Line):
    """The child ends with the gateway from now on. It has not read the edit yet."""

    type: Literal["ready"]


class ModelRequest(_Line):
    """The child wants the model's answer to these messages: pairs of role and text."""

    type: Literal["ask"]
    messages: tuple[tuple[Literal[Role.SYSTEM, Role.USER, Role.ASSISTANT], str], ...]


class CreateRequest(_Line):
    """The child asks if it may create a file that the edit does not name."""

    type: Literal["may_edit"]
    path: str


class Progress(_Line):
    type: Literal["progress"]
    stage: Literal["applying", "correcting"]


class Result(_Line):
    """The edit is done. ``files``: the whole text of each file that was written."""

    type: Literal["result"]
    answer: str
    files: dict[str, str]


class Failed(_Line):
    """The edit cannot be made, for a reason that the model should know."""

    type: Literal["failed"]
    message: Annotated[str, Field(max_length=4000)]


class Crashed(_Line):
    """An error in the child: its type and place."""

    type: Literal["crashed"]
    error: Annotated[str, Field(max_length=400)]


class Blocked(_Line):
    """The child ended itself, because it tried to do what an edit never does."""

    type: Literal["blocked"]
    event: Annotated[str, Field(max_length=400)]


Line: TypeAlias = Ready | ModelRequest | CreateRequest | Progress | Result | Failed | Crashed | Blocked

_LINES: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def read_line(line: bytes) -> Line:
    """Return the validated line. Raise ChildFailed if it is not one of the lines of an edit."""
    try:
        return _LINES.validate_json(line)
    except ValidationError:
        raise ChildFailed("wrote a line that is not part of an edit") from None


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
        """Return the editor whose packages are in the folder ``SPASS_EDITOR``, by default the folder of a deployment."""
        return cls(Path(environment.get("SPASS_EDITOR") or _DEPLOYED))

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        if not (self._packages / "aider").is_dir():
            raise ToolError(
                "The editor is not installed on this gateway. Files can be read, but not edited.", code="tool_unavailable"
            )
        show = _report_changes(report)
        limit = asyncio.timeout(request.seconds)
        try:
            async with limit:
                if not self._children.has_free(request.tenant_id):
                    show("Waiting for other edits")
                async with self._children.hold(request.tenant_id):
                    return await self._run(_Edit(request, ask, may_edit, show))
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"The edit took longer than {request.seconds:g} s. Name fewer files, or ask for a smaller change."
            raise ToolError(message, code="edit_timeout") from None
        except ChildFailed as failure:
            raise _failed(f"The editor {failure}.") from None

    async def _run(self, edit: "_Edit") -> EditResult:
        edit.show("Starting the editor")
        start = start_in_folder(self._command(), _FOLDER_PREFIX, self._environment, self._temporary, max_files=MAX_FILES)
        async with start as child:
            return await edit.converse(child)

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

    def __init__(self, request: EditRequest, ask: Ask, may_edit: MayEdit, show: ReportProgress) -> None:
        self._request: Final = request
        self._ask: Final = ask
        self._may_edit: Final = may_edit
        self.show: Final = show
        self._model_requests = 0

    async def converse(self, child: ChildProcess) -> EditResult:
        """Send the edit, answer the child's requests, and return its result."""
        child.send({name: value for name, value in asdict(self._request).items() if name != "tenant_id"})
        while True:
            match read_line(await child.receive()):
                case Ready():
                    pass
                case ModelRequest() as wanted:
                    self._model_requests += 1
                    if self._model_requests > MAX_MODEL_REQUESTS:
                        raise _failed(f"The edit needs more than {MAX_MODEL_REQUESTS} model calls. Ask for a smaller change.")
                    if sum(len(text) for _, text in wanted.messages) > MAX_REQUEST:
                        raise _failed("The conversation with the model became too long. Name fewer files.")
                    self.show("Asking the model")
                    child.send({"answer": await self._ask([Message(role, text) for role, text in wanted.messages])})
                case CreateRequest(path=path):
                    child.send({"allowed": self._may_create(path)})
                case Progress(stage=stage):
                    self.show(_STAGES[stage])
                case Failed(message=message):
                    raise _failed(message)
                case Crashed(error=error):
                    raise _failed(f"The editor failed with {error}.")
                case Blocked(event=event):
                    raise _failed(f"The editor was stopped, because it tried to do what no edit may do: {event}.")
                case Result() as result:
                    return self._check(result)

    def _check(self, result: Result) -> EditResult:
        """Return the texts that the edit changed."""
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


def _report_changes(report: ReportProgress) -> ReportProgress:
    """Return a function that reports a stage unless it was the last one."""
    last = ""

    def show(stage: str) -> None:
        nonlocal last
        if stage != last:
            last = stage
            report(f"{stage}…")

    return show


def _failed(message: str) -> ToolError:
    return ToolError(message, code="edit_failed")
