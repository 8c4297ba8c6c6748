"""A sandbox that runs code in threads of this process: as fast as a function call, and without any confinement.

It shows what the gateway does with code. What code can do is shown by the tests of ``spass.sandbox``.
"""

import asyncio
import json
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from spass.core.code_calls import CallReply, CodeRequest, Perform, Query, ToolRequest
from spass.core.effects import Cell, CellResult

MAX_BATCH: Final = 64


class LLMError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ToolError(LLMError): ...


class _Final(BaseException):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.text = value if isinstance(value, str) else _json_or_str(value)


class _Stopped(BaseException):
    """The turn has ended while the code waited for a reply."""


@dataclass
class InProcessSandbox:
    """A sandbox without confinement. ``opened`` are the interpreters so far, in order, and ``owners`` those for whom they were
    opened."""

    name: str = "in process"
    unavailable: str | None = None
    opened: list["InProcessInterpreter"] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    def open(self, tenant_id: str, owner_id: str) -> "InProcessInterpreter":
        self.owners.append(owner_id)
        self.opened.append(InProcessInterpreter())
        return self.opened[-1]

    @property
    def running(self) -> int:
        """Return the number of interpreters that are not closed."""
        return sum(not interpreter.closed for interpreter in self.opened)


@dataclass
class InProcessInterpreter:
    """The interpreter of one turn. ``cells`` are those that it ran."""

    cells: list[Cell] = field(default_factory=list)
    closed: bool = False
    _names: dict[str, Any] = field(default_factory=dict)

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        self.cells.append(cell)
        if len(self.cells) == 1:
            self._names = {"LLMError": LLMError, "ToolError": ToolError, **json.loads(json.dumps({**cell.variables}))}
        loop = asyncio.get_running_loop()
        world = _World(loop)
        work = loop.run_in_executor(None, self._run, cell, tools, world)
        work.add_done_callback(lambda _: world.asked.put_nowait(None))
        try:
            while (asked := await world.asked.get()) is not None:
                asked.answer.set_result(await perform(asked.requests))
            return await work
        finally:
            world.stop()

    async def close(self) -> None:
        self.closed = True

    def _run(self, cell: Cell, tools: Sequence[str], world: "_World") -> CellResult:
        printed: list[str] = []

        def write(*values: object, sep: str = " ", end: str = "\n") -> None:
            printed.append(sep.join(map(str, values)) + end)

        def final(value: object) -> None:
            raise _Final(value)

        self._names |= {"print": write, "FINAL": final, **{tool: partial(world.call_tool, tool) for tool in tools}}
        if cell.queries is not None:
            self._names |= {"llm_query": world.query, "llm_batch": world.batch}
        error, answer = None, None
        try:
            exec(cell.code, self._names)
        except _Final as end:
            answer = end.text
        except _Stopped:
            error = "stopped"
        except Exception as failure:  # noqa: BLE001 (code may raise anything)
            error = traceback.format_exception_only(failure)[-1].strip()
        output = "".join(printed)
        kept = output[: cell.max_output_chars]
        return CellResult(kept, error, len(output) - len(kept), answer)


@dataclass
class _Asked:
    """The requests of one wait of the code, and what answers them."""

    requests: Sequence[CodeRequest]
    answer: "Future[Sequence[CallReply]]" = field(default_factory=Future)


@dataclass
class _World:
    """The functions that the code of one cell can call. ``asked`` is its request, and None at its end."""

    loop: asyncio.AbstractEventLoop
    asked: "asyncio.Queue[_Asked | None]" = field(default_factory=asyncio.Queue)
    _waiting: "Future[Sequence[CallReply]] | None" = None
    _stopped: bool = False

    def stop(self) -> None:
        """End the code when it waits, or at its next wait."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    def query(self, prompt: str) -> Any:
        (reply,) = self._ask([_checked(prompt)])
        return _value(reply, LLMError)

    def batch(self, prompts: Sequence[str]) -> list[Any]:
        if len(prompts) > MAX_BATCH:
            raise LLMError("invalid_request", "A batch is too long.")
        replies = self._ask([_checked(prompt) for prompt in prompts])
        return [reply.value if reply.error is None else f"[error: {reply.error.code}]" for reply in replies]

    def call_tool(self, name: str, **arguments: Any) -> Any:
        (reply,) = self._ask([ToolRequest(name, arguments)])
        return _value(reply, ToolError)

    def _ask(self, requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        asked = _Asked(requests)
        self._waiting = asked.answer
        if self._stopped:
            raise _Stopped
        self.loop.call_soon_threadsafe(self.asked.put_nowait, asked)
        try:
            return asked.answer.result()
        except CancelledError:
            raise _Stopped from None


def _checked(prompt: object) -> Query:
    if not isinstance(prompt, str) or not prompt.strip():
        raise LLMError("invalid_request", "A prompt is a text.")
    return Query(prompt)


def _json_or_str(value: object) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)


def _value(reply: CallReply, failure: Callable[[str, str], Exception]) -> Any:
    if reply.error is not None:
        raise failure(reply.error.code, reply.error.message)
    return reply.value
