"""Measure the sandbox: a fresh child to its first answer, the next cell, loops of model calls, replays, memory and dollars.

    python -m bench.sandbox [--rounds N]

The launcher ``process`` starts real children. The launcher ``lambda`` runs the function's own handler in a thread of this
process: Lambda's invocation and network are not in its times. ``container`` is measured where docker or podman has the image that
`make sandbox-image` builds. A turn may wait 64 times, so the loops make 60 calls, which are answered at once. ``live`` means
that the child waits for each answer; ``suspended`` that every call ends the child and starts the program again. Beside the
children, in the same rounds, a bare ``python -S -c pass`` starts and ends. The smallest time of all rounds counts, because other
processes only add to it.

The dollars are list prices of the function's time and invocations for turns of ``rlm`` with one cell and ten calls one by one,
without the models' tokens. The time of an invocation is that of the handler here; a cold start of a machine is not in it.
"""

import argparse
import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.costs.prices import ResourceUsage
from spass.aws.functions import InvokeResponse, LambdaFunction
from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult, Queries
from spass.core.errors import SandboxUnavailable
from spass.sandbox import function
from spass.sandbox.container_child import ContainerLauncher
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.lambda_ import LambdaLauncher
from spass.sandbox.launcher import Launcher
from spass.sandbox.launchers import missing_for_processes
from spass.sandbox.process import ProcessLauncher

CALLS: Final = 60
"""Calls of a loop: a turn may wait 64 times."""
TURN_CALLS: Final = 10
TURNS: Final = 1000
START_RATIO: Final = 2.5
WARM_SECONDS: Final = 0.002
CONTEXT: Final = "x" * (4 * 2**20)
QUERIES: Final = Queries(None, 0.3, 1024, 100)
FUNCTION_GB: Final = 1769 / 1024
LOOP: Final = "total = 0\nfor n in range({calls}):\n    total += len(llm_query(f'How long is {{n}}?'))\nprint(total)"


@dataclass(slots=True)
class HandlerClient:
    """Lambda, in this process. ``invocations`` are the seconds of each, and ``cpu`` the processor time of its child."""

    invocations: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def invoke(self, *, FunctionName: str, TenantId: str, Payload: bytes) -> InvokeResponse:  # noqa: ARG002, N803
        began = time.perf_counter()
        answer = function.handler(json.loads(Payload), self)
        self.invocations.append(time.perf_counter() - began)
        self.cpu.append(answer["cpu"])
        return {"Payload": io.BytesIO(json.dumps(answer).encode())}

    def get_remaining_time_in_millis(self) -> int:
        return 300_000


async def answer_at_once(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
    return [CallReply("a short answer") for _ in requests]


async def run(turn: TurnInterpreter, code: str, context: str = "") -> CellResult:
    """Run a cell that must succeed."""
    result = await turn.run(Cell(code, variables={"context": context}, queries=QUERIES), (), answer_at_once)
    if result.error is not None:
        raise SystemExit(f"the code failed: {result.error}")
    return result


async def seconds_of(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def seconds_of_bare_python() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return time.perf_counter() - began


@dataclass(slots=True)
class Figures:
    """Seconds of the rounds: a fresh child to its first answer, the next cell, and a loop of ``CALLS`` calls."""

    first: list[float] = field(default_factory=list)
    following: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)


async def measure_round(launcher: Launcher, figures: Figures) -> None:
    turn = TurnInterpreter(launcher, "bench", "bench")
    figures.first.append(await seconds_of(run(turn, "print(6 * 7)")))
    figures.following.append(await seconds_of(run(turn, "print(6 * 7)")))
    figures.loop.append(await seconds_of(run(turn, LOOP.format(calls=CALLS))))
    await turn.close()


async def child_megabytes(context: str) -> float:
    """Return the peak memory of a child of the launcher ``process`` with ``context``, in MB."""
    turn = TurnInterpreter(ProcessLauncher(), "bench", "bench")
    await run(turn, "print(len(context))", context)
    peak = max(_peak_bytes(status) for status in Path("/proc").glob("[0-9]*/status"))  # noqa: ASYNC240
    await turn.close()
    return peak / 1e6


def _peak_bytes(status: Path) -> int:
    """Return the peak memory of the process if it is a child of this one."""
    try:
        values = dict(line.split(":", 1) for line in status.read_text().splitlines())
    except OSError:
        return 0
    return int(values["VmHWM"].split()[0]) * 1024 if int(values["PPid"]) == os.getpid() and "VmHWM" in values else 0


async def replay_seconds(cells: int, waits: int) -> float:
    """Return the seconds of the processor for one start that replays ``cells`` cells with ``waits`` waits each."""
    client = HandlerClient()
    turn = TurnInterpreter(LambdaLauncher(LambdaFunction("bench", lambda: client)), "bench", "bench")
    for _ in range(cells):
        await run(turn, LOOP.format(calls=waits))
    began = len(client.cpu)
    for _ in range(10):
        await run(turn, "1")
    return min(client.cpu[began:])


async def turn_invocations() -> HandlerClient:
    """Return the invocations of a turn with one cell that makes ``TURN_CALLS`` calls."""
    client = HandlerClient()
    turn = TurnInterpreter(LambdaLauncher(LambdaFunction("bench", lambda: client)), "bench", "bench")
    await run(turn, LOOP.format(calls=TURN_CALLS))
    return client


async def find_launchers() -> dict[str, Launcher]:
    launchers: dict[str, Launcher] = {}
    if missing_for_processes() is None:
        launchers["process"] = ProcessLauncher()
    launchers["lambda"] = LambdaLauncher(LambdaFunction("bench", HandlerClient))
    for runtime in filter(shutil.which, ("docker", "podman")):
        container = ContainerLauncher.with_runtime(runtime)
        try:
            await measure_round(container, Figures())
        except SandboxUnavailable as error:
            print(f"container, {runtime}: {error.message}")
        else:
            launchers[f"container, {runtime}"] = container
    return launchers


async def measure(rounds: int) -> None:
    launchers = await find_launchers()
    figures = {name: Figures() for name in launchers}
    bare = []
    for _ in range(rounds):
        bare.append(seconds_of_bare_python())
        for name, launcher in launchers.items():
            await measure_round(launcher, figures[name])
    report(figures, min(bare))
    if "process" in launchers:
        empty, full = await child_megabytes(""), await child_megabytes(CONTEXT)
        print(f"memory of a child of process: {empty:.0f} MB; with a context of 4 MiB: {full:.0f} MB")
    await report_replays()
    await report_dollars()


def report(figures: dict[str, Figures], bare: float) -> None:
    print(f"bare `python -S -c pass`: {bare * 1000:.1f} ms")
    for name, measured in figures.items():
        first, following = min(measured.first), min(measured.following)
        way = "suspended at each call" if name == "lambda" else "live"
        target = f", to reach: {START_RATIO}: {_verdict(first / bare <= START_RATIO)}" if name == "process" else ""
        print(f"{name}, a fresh child to its first answer: {first * 1000:.1f} ms ({first / bare:.2f} of the bare one{target})")
        warm = f" (to reach: {WARM_SECONDS * 1000:g} ms: {_verdict(following <= WARM_SECONDS)})" if name == "process" else ""
        print(f"{name}, the next cell: {following * 1000:.2f} ms{warm}")
        print(f"{name}, a loop of {CALLS} model calls, {way}: {min(measured.loop):.2f} s")


async def report_replays() -> None:
    """Print the processor time of a start that replays a program, by cells and waits."""
    programs = ((1, 0), (1, 15), (1, 60), (15, 1), (60, 1), (8, 7))
    milliseconds = {(cells, waits): await replay_seconds(cells, waits) * 1000 for cells, waits in programs}
    for (cells, waits), time_of_start in milliseconds.items():
        print(f"processor time of a start that replays {cells} x {waits} waits: {time_of_start:.1f} ms")
    wait = (milliseconds[1, 60] - milliseconds[1, 15]) / 45
    cell = (milliseconds[60, 1] - milliseconds[15, 1]) / 45 - wait
    print(f"each further cell: {cell:.2f} ms; each further wait: {wait:.3f} ms")


async def report_dollars() -> None:
    client = await turn_invocations()
    seconds = sum(client.invocations)
    usage = ResourceUsage(0, 0, gb_seconds=seconds * FUNCTION_GB, invocations=len(client.invocations))
    dollars = float(sum(usage.dollars(TURNS).values()))
    work = f"{len(client.invocations)} invocations and {seconds:.2f} s each, at {FUNCTION_GB * 1024:.0f} MB"
    print(f"{TURNS:,} turns of rlm with {TURN_CALLS} calls: {dollars:.3f} USD of the function ({work})")


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "NOT met"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of all measurements (default 20)")
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
