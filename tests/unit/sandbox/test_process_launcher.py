"""The launcher ``process``: real children, which leave nothing behind however they end"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult, Queries
from spass.core.errors import SandboxUnavailable
from spass.sandbox import child_process
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.launchers import missing_for_processes
from spass.sandbox.limits import LIMITS, Limits
from spass.sandbox.process import ProcessLauncher
from tests.unit.sandbox.forged_lines import FORGED_CALL, FORGED_END, has_stopped
from tests.unit.sandbox.scripted_children import Outside

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes())),
]

QUERIES = Queries(None, 0.3, 100, 100)
TOOLS = ("calculator",)


def cell(code: str, **values: Any) -> Cell:
    return Cell(code, **{"queries": QUERIES, "tools": True, **values})


class Children:
    """A launcher with a folder of its own, and the children that it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = ProcessLauncher(temporary=folder)
        self.outside = Outside()

    def open(self, limits: Limits = LIMITS) -> TurnInterpreter:
        return TurnInterpreter(self.launcher, "tenant", "owner", limits)

    async def run(self, turn: TurnInterpreter, code: str, **values: Any) -> CellResult:
        return await turn.run(cell(code, **values), TOOLS, self.outside.perform)

    def running(self) -> list[int]:
        """Return the ids of the processes whose current folder is in the launcher's folder."""
        return [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if _current_folder(process).startswith(f"{self.folder}/")
        ]

    def folders(self) -> list[str]:
        """Return what is in the launcher's folder."""
        return [path.name for path in self.folder.iterdir()]

    async def check_gone(self) -> None:
        """Check that within 2 s no process and no folder is left."""
        give_up = time.monotonic() + 2
        while (self.running() or self.folders()) and time.monotonic() < give_up:
            await asyncio.sleep(0.02)
        assert self.running() == []
        assert self.folders() == []


def _current_folder(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    children = Children(tmp_path)
    yield children
    await children.check_gone()


async def test_cells_share_variables_and_call_the_outside(children: Children) -> None:
    turn = children.open()
    first = await children.run(turn, "x = llm_query('one')\nprint(len(context))", variables={"context": "ü" * 2_000_000})
    assert first == CellResult("2000000\n")
    second = await children.run(turn, "print(x, llm_batch(['two', 'three']), calculator(expression='1'))")
    assert second == CellResult("ONE ['TWO', 'THREE'] CALCULATOR\n")
    assert await children.run(turn, "FINAL({'x': x})") == CellResult("", final='{"x": "ONE"}')
    assert children.outside.performed == ["one", "two", "three", "calculator"]
    await turn.close()


BREAKING = {
    "an endless loop": "while True: pass",
    "an endless wait": "import os\nos.read(os.pipe()[0], 1)",
    "an exit": "import os\nos._exit(0)",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "too much memory": "x = 'x' * 10**10",
    "memory in steps": "x = []\nwhile True: x.append('x' * 2**20)",
    "a loop in a comprehension": "[0 for _ in iter(int, 1)]",
    "a power": "x = 9 ** 9 ** 9",
    "a regular expression": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "many files": "for n in range(10**7): open(str(n), 'w').close()",
    "a call after the end of the program": "raise SystemExit(llm_query('x'))",
}


@pytest.mark.parametrize("code", BREAKING.values(), ids=BREAKING)
async def test_code_that_breaks_leaves_the_earlier_state(children: Children, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    turn = children.open(Limits(cell_cpu=0.7))
    await children.run(turn, "x = 5\ny = llm_query('once')")
    with monkeypatch.context() as patch:  # only while a child runs: a busy machine needs seconds to start one
        patch.setattr("spass.sandbox.running_child.time", SimpleNamespace(monotonic=lambda: 40 * time.monotonic()))
        broken = await children.run(turn, code)
    assert broken.error
    assert await children.run(turn, "print(x, y)") == CellResult("5 ONCE\n")
    assert children.outside.performed.count("once") == 1
    await turn.close()


async def test_output_of_any_size_is_cut_and_counted(children: Children) -> None:
    turn = children.open()
    assert await children.run(turn, "for _ in range(1000): print('x' * 99_999)") == CellResult("x" * 10_000, truncated=99_990_000)
    assert (await children.run(turn, "print('x' * 10**8)")).truncated == 10**8 + 1 - 10_000
    await turn.close()


async def test_a_child_has_no_environment_and_an_empty_folder(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    turn = children.open()
    shown = await children.run(turn, "import os\nprint(dict(os.environ), os.listdir('.'))\nopen('f', 'w').write('x')")
    assert shown == CellResult("{} []\n1\n")
    (child,) = children.running()
    assert b"sk-secret" not in Path(f"/proc/{child}/environ").read_bytes()  # noqa: ASYNC240
    await turn.close()


ENDLESS = ["while True: pass", "import os\nos.read(os.pipe()[0], 1)", "while True: print('x' * 10**6)", "llm_query('a')"]


@pytest.mark.parametrize("code", ENDLESS)
async def test_a_run_cancelled_at_any_time_leaves_nothing(children: Children, code: str) -> None:
    async def never(_: Sequence[CodeRequest]) -> list[CallReply]:
        await asyncio.Event().wait()
        return []

    for milliseconds in (0, 1, 2, 4, 8, 16, 32, 64, 128):
        turn = children.open()
        task = asyncio.create_task(turn.run(cell(code), TOOLS, never))
        await asyncio.sleep(milliseconds / 1000)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert children.running() == []
    await children.check_gone()


async def test_a_run_cancelled_twice_leaves_nothing(children: Children) -> None:
    turn = children.open()
    await children.run(turn, "for n in range(3000): open(str(n), 'w').close()")
    task = asyncio.create_task(children.run(turn, "while True: pass"))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert children.folders() == []


async def test_a_turn_that_is_closed_between_cells_leaves_nothing(children: Children) -> None:
    turn = children.open()
    await children.run(turn, "x = 1")
    assert len(children.running()) == 1
    await turn.close()
    await turn.close()
    assert children.running() == []
    assert children.folders() == []


GATEWAY = """
import asyncio, sys
from pathlib import Path
from spass.core.effects import Cell
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.process import ProcessLauncher

async def main():
    turn = TurnInterpreter(ProcessLauncher(temporary=Path(sys.argv[1])), "tenant", "owner")
    await turn.run(Cell("x = 1"), (), None)
    print("ready", flush=True)
    await turn.run(Cell(sys.argv[2]), (), None)

asyncio.run(main())
"""


@pytest.mark.parametrize("code", ["while True: pass", "import os\nos.read(os.pipe()[0], 1)"])
async def test_a_killed_gateway_leaves_no_child_and_the_next_one_removes_its_folder(children: Children, code: str) -> None:
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, str(children.folder), code], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert gateway.stdout is not None
    with gateway.stdout as stdout:
        assert stdout.readline() == b"ready\n"
        await asyncio.sleep(0.1)
        assert len(children.running()) == 1
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
    give_up = time.monotonic() + 2
    while children.running() and time.monotonic() < give_up:
        await asyncio.sleep(0.02)
    assert children.running() == []
    turn = children.open()
    await children.run(turn, "1")
    await turn.close()


async def test_a_machine_without_room_for_a_process_has_no_sandbox(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(child_process.subprocess, "Popen", refuse)  # type: ignore[attr-defined]
        with pytest.raises(SandboxUnavailable):
            await children.run(children.open(), "1")
    turn = children.open()
    assert await children.run(turn, "1") == CellResult("1\n")
    await turn.close()


async def test_a_child_that_cannot_confine_itself_runs_no_code(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.sandbox.process._LANDLOCK_REQUIRED", 10**6)
    with pytest.raises(SandboxUnavailable):
        await children.run(children.open(), "open('/tmp/escaped', 'w')")


async def test_many_turns_run_side_by_side(children: Children) -> None:
    async def one(number: int) -> str:
        turn = children.open()
        await children.run(turn, f"x = llm_query('p{number}')")
        result = await children.run(turn, "print(x)")
        await turn.close()
        return result.output

    outputs = await asyncio.gather(*(one(number) for number in range(12)))
    assert outputs == [f"P{number}\n" for number in range(12)]


async def test_a_child_that_waits_among_too_many_is_ended_and_its_program_runs_again(tmp_path: Path) -> None:
    children = Children(tmp_path)
    children.launcher = ProcessLauncher(temporary=tmp_path, max_open=1)
    first, second = children.open(), children.open()
    waiting: list[int] = []

    async def count(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        waiting.append(len(children.running()))
        return await children.outside.perform(requests)

    await first.run(cell("x = llm_query('one')"), TOOLS, count)
    await second.run(cell("y = llm_query('two')"), TOOLS, count)
    assert (waiting, len(children.running())) == ([1, 1], 1)
    assert await second.run(cell("print(y)"), TOOLS, count) == CellResult("TWO\n")
    assert await first.run(cell("print(x)"), TOOLS, count) == CellResult("ONE\n")
    assert children.outside.performed == ["one", "two"]
    await first.close()
    await second.close()
    await children.check_gone()


async def test_code_that_forges_a_call_computes_nothing_while_the_call_is_performed(children: Children) -> None:
    stopped = []

    async def perform(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        (process,) = children.running()
        stopped.append(await has_stopped(process))
        return [CallReply("") for _ in requests]

    turn = children.open(Limits(cell_cpu=1, turn_cpu=5))
    ended = await turn.run(cell(FORGED_CALL), TOOLS, perform)
    assert stopped == [True]
    assert "used more than 1 s of processor time" in (ended.error or "")
    await turn.close()


async def test_code_that_forges_the_end_of_its_cell_computes_nothing_between_two_cells(children: Children) -> None:
    turn = children.open(Limits(cell_cpu=1, turn_cpu=5))
    assert (await children.run(turn, FORGED_END)).output == "forged"
    (process,) = children.running()
    assert await has_stopped(process)
    assert "used more than 1 s of processor time" in ((await children.run(turn, "1")).error or "")
    await turn.close()
