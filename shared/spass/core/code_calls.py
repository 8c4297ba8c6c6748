"""The calls that model-written code makes while it runs, and the interpreter that runs it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from spass.core.effects import CallError, Cell, CellResult
from spass.core.errors import InternalError
from spass.core.messages import Json

CODE_TOOL: Final = "code_interpreter"
"""The tool as whose calls cells are recorded."""


@dataclass(frozen=True, slots=True)
class Query:
    prompt: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    name: str
    arguments: Mapping[str, Json]


CodeRequest: TypeAlias = Query | ToolRequest


@dataclass(frozen=True, slots=True)
class CallReply:
    """The result of a request: the model's text or the tool's result, or an error that the code can catch."""

    value: Json = None
    error: CallError | None = None


Perform: TypeAlias = Callable[[Sequence[CodeRequest]], Awaitable[Sequence[CallReply]]]
"""Perform the requests of one wait side by side. Return one reply each, in the order of the requests."""


async def refuse_requests(_: Sequence[CodeRequest]) -> Sequence[CallReply]:
    """Refuse the calls of a cell that has neither queries nor tools. Its interpreter must not let it make any."""
    raise InternalError("A cell without queries and tools made a call.")


class Interpreter(Protocol):
    """The interpreter of one turn. The cells that it runs share their variables."""

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        """Run ``cell``, in which ``tools`` are functions. Return an error of the code as a result.

        A cancelled run leaves no process behind.

        Raises:
            SandboxUnavailable: the sandbox does not answer. No request was performed twice.
            SpassError: an error that ``perform`` raised.
        """
        ...

    async def close(self) -> None:
        """End the interpreter and remove what it left behind. Never raise an error."""
        ...


class Sandbox(Protocol):
    """A place where model-written code can run. ``name`` is the name of its launcher. ``unavailable`` is None, or the reason
    why no code can run, for people."""

    @property
    def name(self) -> str: ...

    @property
    def unavailable(self) -> str | None: ...

    def open(self, tenant_id: str, owner_id: str) -> Interpreter:
        """Return a new interpreter. Code of different ``owner_id`` never shares a machine that remembers anything. Tenants take
        turns when more code waits than can compute at the same time.

        Raises:
            SandboxUnavailable: no code can run here.
        """
        ...
