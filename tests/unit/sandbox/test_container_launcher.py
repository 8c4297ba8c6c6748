"""The launcher ``container``: the code of a turn runs in one container, which is removed however the turn ends"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult, Queries
from spass.core.errors import SandboxUnavailable
from spass.sandbox.container_child import ContainerLauncher
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.launchers import missing_for_processes
from spass.sandbox.limits import LIMITS, Limits
from spass.sandbox.runner import ContainerRunner
from tests.contained_kinds import IMAGE
from tests.recording_runtime import RecordingRuntime
from tests.unit.sandbox.forged_lines import FORGED_CALL, has_stopped
from tests.unit.sandbox.process_list import descendants
from tests.unit.sandbox.scripted_children import Outside

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes())),
]


def cell(code: str, **values: Any) -> Cell:
    return Cell(code, queries=Queries(None, 0.3, 100, 100), **values)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingRuntime]:
    (folder := tmp_path / "runtime").mkdir()
    runtime = RecordingRuntime(folder, "podman")
    monkeypatch.setenv("PATH", str(folder))
    runtime.contain(IMAGE)
    yield runtime
    assert runtime.running == set()


def open_turn(limits: Limits = LIMITS) -> TurnInterpreter:
    return TurnInterpreter(ContainerLauncher.with_runtime("podman"), "tenant", "owner", limits)


async def test_cells_share_a_container_and_call_the_outside(runtime: RecordingRuntime) -> None:
    turn, outside = open_turn(), Outside()
    first = await turn.run(cell("x = llm_query('one')", variables={"context": "ä"}), (), outside.perform)
    second = await turn.run(cell("print(x, context)"), (), outside.perform)
    await turn.close()
    assert (first.error, second) == (None, CellResult("ONE ä\n"))
    (run,) = runtime.runs
    assert run.arguments[-1] == "spass-sandbox:latest"
    assert "-v" not in run.arguments
    assert run.arguments[run.arguments.index("--network") + 1] == "none"


BREAKING = {
    "an endless loop": "while True: pass",
    "an endless wait": "import os\nos.read(os.pipe()[0], 1)",
    "an exit": "import os\nos._exit(0)",
    "too much memory": "x = 'x' * 10**10",
}


@pytest.mark.parametrize("code", BREAKING.values(), ids=BREAKING)
async def test_code_that_breaks_leaves_the_earlier_state(
    runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    turn, outside = open_turn(Limits(cell_cpu=0.7)), Outside()
    await turn.run(cell("x = llm_query('once')"), (), outside.perform)
    with monkeypatch.context() as patch:  # only while a child runs: a busy machine needs seconds to start one
        patch.setattr("spass.sandbox.running_child.time", SimpleNamespace(monotonic=lambda: 40 * time.monotonic()))
        assert (await turn.run(cell(code), (), outside.perform)).error
    assert await turn.run(cell("print(x)"), (), outside.perform) == CellResult("ONCE\n")
    assert outside.performed == ["once"]
    await turn.close()


def is_child(process: int) -> bool:
    """Return True for the process that runs the code."""
    return b"child/__main__.py" in Path(f"/proc/{process}/cmdline").read_bytes()


async def test_code_that_forges_a_call_computes_nothing_in_its_container_meanwhile(runtime: RecordingRuntime) -> None:
    stopped = []

    async def perform(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        (process,) = [each for each in descendants() if is_child(each)]
        stopped.append(await has_stopped(process))
        return [CallReply("") for _ in requests]

    turn = open_turn(Limits(cell_cpu=1, turn_cpu=5))
    ended = await turn.run(cell(FORGED_CALL), (), perform)
    assert stopped == [True]
    assert "used more than 1 s of processor time" in (ended.error or "")
    await turn.close()


async def test_code_that_makes_too_many_files_is_stopped(runtime: RecordingRuntime) -> None:
    turn, outside = open_turn(Limits(cell_cpu=20)), Outside()
    code = "import os\nfor number in range(1_001): os.mkdir(str(number))\nwhile True: pass"
    assert "wrote too many files" in str((await turn.run(cell(code), (), outside.perform)).error)
    await turn.close()


@pytest.mark.parametrize("code", ["while True: pass", "llm_query('a')"])
async def test_a_run_cancelled_at_any_time_leaves_no_container(runtime: RecordingRuntime, code: str) -> None:
    async def never(_: Sequence[CodeRequest]) -> list[CallReply]:
        await asyncio.Event().wait()
        return []

    for seconds in (0.0, 0.01, 0.05, 0.3, 0.8):
        turn = open_turn()
        task = asyncio.create_task(turn.run(cell(code), (), never))
        await asyncio.sleep(seconds)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await turn.close()
        assert runtime.running == set()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("import sys; sys.exit(125)", "."),
        ("import sys; sys.exit('Unable to find the image')", "Unable to find the image"),
        ("print('hello')", "."),
        ("import os; os.read(0, 1); os._exit(0)", "."),
    ],
)
async def test_an_image_that_is_not_ours_is_no_sandbox(runtime: RecordingRuntime, image: str, reason: str) -> None:
    runtime.contain(image)
    turn = open_turn()
    with pytest.raises(SandboxUnavailable, match=reason):
        await turn.run(cell("1"), (), Outside().perform)
    await turn.close()


async def test_a_runtime_that_is_gone_is_no_sandbox(runtime: RecordingRuntime) -> None:
    turn = open_turn()
    runtime.program.unlink()
    with pytest.raises(SandboxUnavailable):
        await turn.run(cell("1"), (), Outside().perform)
    await turn.close()


@pytest.mark.usefixtures("runtime")
async def test_more_turns_than_containers_wait_for_the_outside_and_all_go_on() -> None:
    launcher, outside, all_wait = (
        ContainerLauncher(ContainerRunner(runtime="podman", max_concurrent=2)),
        Outside(),
        asyncio.Event(),
    )
    waiting: list[str] = []

    async def perform(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        waiting.append("")
        if len(waiting) == 4:
            all_wait.set()
        await all_wait.wait()
        return await outside.perform(requests)

    turns = [TurnInterpreter(launcher, "tenant", "owner") for _ in range(4)]
    results = await asyncio.gather(*(turn.run(cell("print(llm_query('one'))"), (), perform) for turn in turns))
    for turn in turns:
        await turn.close()
    assert results == [CellResult("ONE\n")] * 4
    assert outside.performed == ["one"] * 4
