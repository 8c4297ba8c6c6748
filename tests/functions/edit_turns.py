"""Turns that edit a file with real child processes, side by side: alone or within a delegate, stopped at any moment.

Each turn has its own workspace, and its child its own temporary folder. All texts of a turn contain its number, so the one model
and the one editor of the gateway know for whom they work.
"""

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec, file_model
from spass.calls.scope import ReportProgress
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sandbox import child_disk
from spass.sandbox.child_process import ChildProcess
from spass.testing.model import ScriptedModel
from spass.tools.editor.aider import AiderEditor
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit
from tests.functions.gateway import Gateway
from tests.unit.tools.editor.scripted import PACKAGES, block

BEFORE: Final = "x = 1\n"
AFTER: Final = "x = 2\n"
_USAGE: Final = TokenUsage(10, 5)
_ENGINE: Final = """
import signal, time

def edit(edit, connection, root):
    for number in (1, 2, 3, 13, 15):
        signal.signal(number, signal.SIG_IGN)
    root.mkdir()
    (root / "main.py").write_text(edit.files["main.py"])
    connection.ask([{"role": "user", "content": edit.message}])
    connection.report("applying")
    time.sleep(0.1)
    from spass.tools.editor.child.connection import Edited
    return Edited("Done.", {"main.py": "x = 2\\n"})
"""


def agent(name: str, **fields: object) -> AgentSpec:
    own = {"name": name, "model": "small", "system_prompt": name, "workspace": "default"}
    return file_model("orchestrator").model_validate({**own, **fields}).spec()


AGENTS: Final = (
    agent("boss", tools=["delegate"], delegates=["coder", "gated"]),
    agent("coder", tools=["aider_edit", "calculator"], paths={"write": ["**"]}),
    agent("gated", tools=["aider_edit"], paths={"write": ["**"]}, approval=["aider_edit"]),
)


@dataclass
class EditTurn:
    """One turn. The model takes at least ``seconds_of_edit`` for the answer to an edit. ``reached`` are the moments of the edit
    that have begun. ``children`` are the processes of its editor, each of which leads a group. ``open_answers`` counts the
    answers of the model that have not ended."""

    number: int
    is_delegated: bool
    folder: Path
    rng: random.Random
    engine: str
    longest_pause: float = 0.1
    seconds_of_edit: float = 0.0
    editing_agent: str = "coder"
    children: list[int] = field(default_factory=list)
    open_answers: int = 0
    reached: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def workspace(self) -> str:
        return f"w-{self.number}"

    @property
    def agent(self) -> str:
        return "boss" if self.is_delegated else self.editing_agent

    @property
    def path(self) -> str:
        return f"/c1/agents/{self.agent}/chat"

    @property
    def message_id(self) -> str:
        return f"m-{self.number}"

    @property
    def task(self) -> str:
        return f"turn-{self.number}- Set x to 2."

    def moment(self, name: str) -> asyncio.Event:
        return self.reached.setdefault(name, asyncio.Event())

    def has_reached(self, name: str) -> bool:
        return self.moment(name).is_set()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * self.longest_pause)

    def living_children(self) -> list[int]:
        """Return the process groups in which a process exists."""
        return [group for group in self.children if exists(group)]

    def left_files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]


def exists(group: int) -> bool:
    """Return True if a process of this group exists."""
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


@dataclass
class EditingModel(ScriptedModel):
    """The model of the agents and of their edits. It writes in pieces, with pauses."""

    turns: dict[int, EditTurn] = field(default_factory=dict)

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        turn = self.turns[number_of("".join(message.content for message in request.messages))]
        turn.open_answers += 1
        try:
            turn.moment("in the model of an agent" if request.tools else "in the model of the edit").set()
            await asyncio.sleep(0.0 if request.tools else turn.seconds_of_edit)
            for delta in self._answer(request, turn):
                await turn.pause()
                yield delta
        finally:
            turn.open_answers -= 1
        if not request.tools:
            turn.moment("after the answer").set()

    def _answer(self, request: ChatRequest, turn: EditTurn) -> Sequence[ChatDelta]:
        if not request.tools:
            return [*map(ChatDelta, block("main.py", BEFORE, AFTER).splitlines(keepends=True)), _end("")]
        if request.messages[-1].tool_call_id is not None:
            return [ChatDelta("The end "), _end("is near.")]
        if request.messages[0].content.startswith("boss"):
            return [_call("delegate", {"agent": turn.editing_agent, "task": turn.task})]
        return [_call("aider_edit", {"message": turn.task, "files": ["main.py"]})]


def _end(text: str) -> ChatDelta:
    return ChatDelta(text, finish_reason=FinishReason.STOP, usage=_USAGE)


def _call(name: str, arguments: dict[str, Any]) -> ChatDelta:
    call = ToolCallDelta(0, "call_1", name, json.dumps(arguments))
    return ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS, usage=_USAGE)


def number_of(text: str) -> int:
    """Return the number of the turn to which a text belongs."""
    found = re.search(r"turn-(\d+)-", text)
    assert found, text
    return int(found[1])


@dataclass
class EditorOfTurns:
    """The gateway's editor: for each turn one in its folder, with its engine."""

    turns: dict[int, EditTurn]
    library: Path

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        turn = self.turns[number_of(request.message)]
        packages = PACKAGES if turn.engine == "aider" else self.library
        engine = "spass.tools.editor.child.engine" if turn.engine == "aider" else turn.engine
        turn.moment("in the child").set()
        result = await AiderEditor(packages, engine=engine, temporary=turn.folder).edit(request, ask, may_edit, report)
        turn.moment("after the edit").set()
        return result


@dataclass
class EditTurns:
    """A gateway whose agents edit files with child processes. ``quick`` is an engine that needs a tenth of Aider's time."""

    gateway: Gateway
    folder: Path
    turns: dict[int, EditTurn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        library = self.folder / "library"
        (library / "aider").mkdir(parents=True)
        self.add_engine("quick", _ENGINE)
        model = EditingModel(turns=self.turns)
        services = self.gateway.services
        self.gateway.model = services._model = model
        services.agents = AgentRegistry(AGENTS)
        services.editor = EditorOfTurns(self.turns, library)

    def add_engine(self, name: str, code: str) -> None:
        """Add an engine for children: the source of a module with a function ``edit``."""
        (self.folder / "library" / f"{name}.py").write_text(code)

    def prepare(self, seed: int, *, engine: str, is_delegated: bool) -> EditTurn:
        """Return a turn with a workspace of one file."""
        folder = self.folder / f"temporary-{seed}"
        folder.mkdir()
        turn = EditTurn(seed, is_delegated, folder, random.Random(seed), engine)
        self.turns[seed] = turn
        target = f"/a1/workspaces/{turn.workspace}/file?path=main.py"
        written = self.gateway.send("PUT", target, raw=BEFORE.encode(), headers={"Content-Type": "application/octet-stream"})
        assert written.status == 200, written.text
        return turn

    def watch_children(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note the processes that the editors start."""
        turns = self.turns

        class NotedChild(ChildProcess):
            def __init__(self, command: Sequence[str], *, folder: Path, environment: Any) -> None:
                super().__init__(command, folder=folder, environment=environment)
                (turn,) = [turn for turn in turns.values() if folder.is_relative_to(turn.folder)]
                turn.children.append(self._process.pid)

        monkeypatch.setattr(child_disk, "ChildProcess", NotedChild)

    def body(self, turn: EditTurn) -> dict[str, Any]:
        messages = [{"role": "user", "content": turn.task}]
        return {"message_id": turn.message_id, "workspace": turn.workspace, "messages": messages}

    def versions(self, turn: EditTurn) -> list[int]:
        """Return the versions of the turn's workspace, without the one of ``prepare``."""
        reply = self.gateway.send("GET", f"/a1/workspaces/{turn.workspace}/versions")
        numbers = [version["version"] for version in reply.json["versions"]]
        assert numbers.pop() == 1
        return numbers

    def text(self, turn: EditTurn) -> str:
        return self.gateway.send("GET", f"/a1/workspaces/{turn.workspace}/file?path=main.py").text
