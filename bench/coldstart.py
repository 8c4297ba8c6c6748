"""Measure the cold start of every function with the bundles that a deployment uploads: with their byte code, and without.

    python -m bench.coldstart [--rounds N] [--python VERSION] [--command | function ...]

The recipes of a deployment build code and layers, for this machine's processor. Nothing is written to them, as in Lambda. Each
start is a new interpreter of Lambda's version, or of ``--python``, without the packages of this machine. It imports the function
and does all that the function does in Lambda before its first event: it reads the operator's files, makes the table's client and,
for some routes, the engine. The web server of streaming functions is included, the start of the interpreter is not. The baseline
is ``fastapi``, ``mangum`` and ``boto3`` with a table's client, and nothing else, with the byte code that ``compileall`` writes. A
second table shows on which packages a start spends its time, by ``-X importtime``, which makes each start longer.

The help of the command line (``python -m spass --help``) is measured beside importing ``httpx`` and ``argparse``, with this
interpreter and its byte code. The function that runs the code of models is measured beside a handler that imports ``json`` alone,
each with the start of its interpreter, because both are short. ``--command`` measures only these two.

Times are processor time, because a start waits for nothing and other processes of the machine would count too. Every round starts
all functions in turn, so that a slow minute affects all alike. The smallest time of each counts.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import botocore

from bench.import_times import BEGIN, OWN, STANDARD_LIBRARY, read_import_times
from infra import bundling
from infra.bundling import LAMBDA, Target
from infra.routes import ROUTES, Permission, Route
from infra.workers import WORKERS

TO_REACH: Final = 1.15
SHORT_TO_REACH: Final = 0.95
MEMORY_TO_REACH: Final = 1.05
PACKAGES_SHOWN: Final = 5
COMMAND_TO_REACH: Final = 1.5
HEAVY: Final = ("numpy", "simsimd", "httpx", "tokenizers")
BASELINE: Final = "fastapi, mangum, boto3"
BASELINE_START: Final = "import fastapi, mangum, boto3; boto3.client('dynamodb')"
COMMAND: Final = "spass --help"
COMMAND_START: Final = """
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    from spass.cli.main import main
    main(["--help"])
"""
COMMAND_BASELINE: Final = "httpx, argparse"
COMMAND_BASELINE_START: Final = "import httpx, argparse"
SANDBOX_TO_REACH: Final = 1.2
SANDBOX_START: Final = "import function"
BARE_HANDLER_START: Final = "import json\ndef handler(event, context): return {}"
ROOT: Final = Path(__file__).parent.parent
SANDBOX: Final = ROOT / "shared" / "spass" / "sandbox"
PROBE: Final = """
import json, resource, sys, time
began = time.process_time()
{start}
took = time.process_time() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([took * 1000, memory, [name for name in {heavy} if name in sys.modules]]))
"""


@dataclass(frozen=True, slots=True)
class Bundles:
    """The folders that Lambda would unpack: code with the operator's files, packages, the embedded model."""

    code: Path
    runtime: Path
    model: Path


@dataclass(frozen=True, slots=True)
class FunctionStart:
    """A function: the statements that start it, and the modules of the routes that it serves if it serves several. A ``short``
    function answers without a stream or a model."""

    name: str
    start: str
    served: tuple[str, ...] = ()
    short: bool = False


@dataclass(slots=True)
class ColdStartFigures:
    """One function with one bundle: milliseconds and MiB of each start, and the heavy packages that it imports."""

    milliseconds: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)
    heavy: list[str] = field(default_factory=list)
    packages: Mapping[str, float] = field(default_factory=dict)

    @property
    def time(self) -> float:
        return min(self.milliseconds)

    @property
    def memory(self) -> float:
        return statistics.median(self.mebibytes)


def build(folder: Path, compiler: Path, target: Target) -> dict[bool, Bundles]:
    """Return the bundles with byte code (True) and without."""
    model = folder / "model"
    bundling.model_layer(model, ROOT / "requirements" / "model.txt")
    built: dict[bool, Bundles] = {}
    for with_bytecode in (True, False):
        bundles = Bundles(folder / f"code-{with_bytecode}", folder / f"runtime-{with_bytecode}", model)
        chosen = compiler if with_bytecode else None
        sources, start_script = [ROOT / "functions", ROOT / "shared" / "spass"], ROOT / "infra" / "assets" / "run.sh"
        bundling.function_code(
            bundles.code,
            sources=sources,
            excluded=[ROOT / "shared" / "spass" / folder for folder in ("testing", "sandbox/foreign")],
            start_script=start_script,
            compiler=chosen,
        )
        bundling.operators_files(bundles.code, gateway=ROOT / "gateway.yaml", agents=ROOT / "agents")
        bundling.runtime_layer(bundles.runtime, ROOT / "requirements" / "runtime.txt", compiler=chosen, target=target)
        built[with_bytecode] = bundles
    return built


def build_plain(folder: Path, compiler: Path, built: Mapping[bool, Bundles]) -> dict[bool, Bundles]:
    """Return the same bundles with packages as ``pip`` and ``compileall`` leave them."""
    plain = folder / "plain"
    shutil.copytree(built[False].runtime, plain)
    subprocess.run([compiler, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", plain], check=True)
    return {True: replace(built[True], runtime=plain), False: built[False]}


def functions() -> list[FunctionStart]:
    """Return every function of a deployment, as Lambda starts it."""
    found = [_route_function(name) for name in dict.fromkeys(route.function_name for route in ROUTES)]
    return [*found, *(FunctionStart(worker.function_name, f"import functions.workers.{worker.module}") for worker in WORKERS)]


def _route_function(name: str) -> FunctionStart:
    rows = [route for route in ROUTES if route.function_name == name]
    modules = tuple(f"functions.{route.module}" for route in rows)
    if rows[0].long:
        # The server's own steps before it listens.
        server = f"server = uvicorn.Config('{modules[0]}:app'); server.load(); server.get_loop_factory()"
        return FunctionStart(name, f"import uvicorn, {modules[0]}; {server}")
    if len(modules) > 1:
        return FunctionStart(name, "import functions.workers.shared", modules, short=True)
    return FunctionStart(name, f"import {modules[0]}", short=True)


def start(interpreter: Path, started: FunctionStart, bundles: Bundles, figures: ColdStartFigures) -> None:
    """Start a function once and add its processor time and memory to ``figures``."""
    done = _run(interpreter, ["-c", PROBE.format(start=started.start, heavy=HEAVY)], started, bundles)
    took, memory, figures.heavy = json.loads(done.stdout.splitlines()[-1])
    figures.milliseconds.append(took)
    figures.mebibytes.append(memory)


def time_imports(interpreter: Path, started: FunctionStart, bundles: Bundles, figures: ColdStartFigures) -> None:
    """Start a function once, and keep the times of its packages if no start before was faster."""
    program = f"import sys; print({BEGIN!r}, file=sys.stderr)\n{started.start}"
    times = read_import_times(_run(interpreter, ["-X", "importtime", "-c", program], started, bundles).stderr)
    if not figures.packages or sum(times.values()) < sum(figures.packages.values()):
        figures.packages = times


def _run(interpreter: Path, arguments: list[str], started: FunctionStart, bundles: Bundles) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{bundles.code}{os.pathsep}{bundles.runtime / 'python'}",
        # A function cannot write to its bundles. Root can, whatever the folders' permissions are.
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "AWS_LAMBDA_FUNCTION_NAME": f"spass-bench-{started.name}",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "SPASS_CONFIG": str(bundles.code / "config" / "gateway.yaml"),
        "SPASS_AGENTS": str(bundles.code / "config" / "agents"),
        "SPASS_MODEL": str(bundles.model / "model"),
        "SPASS_ROUTES": ",".join(started.served),
        "SPASS_TENANT_ROLE": "arn:aws:iam::000000000000:role/bench",
    }
    if started.name == BASELINE:  # the bundles have no description of DynamoDB, which the gateway calls without boto3
        environment["AWS_DATA_PATH"] = str(Path(botocore.__file__).parent / "data")
    # Without the packages of this machine, and what they import when an interpreter starts.
    command = [str(interpreter), "-S", *arguments]
    return subprocess.run(command, env=environment, cwd=bundles.code, check=True, capture_output=True, text=True)


def measure_command(rounds: int) -> None:
    """Print the figures of the command line's help and of its baseline."""
    starts = {COMMAND: COMMAND_START, COMMAND_BASELINE: COMMAND_BASELINE_START}
    figures = {name: ColdStartFigures() for name in starts}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "shared")}
    for _ in range(rounds + 1):  # the first round writes the byte code
        for name, statements in starts.items():
            program = PROBE.format(start=statements, heavy=HEAVY)
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
            )
            took, memory, figures[name].heavy = json.loads(done.stdout.splitlines()[-1])
            figures[name].milliseconds.append(took)
            figures[name].mebibytes.append(memory)
    command, base = figures[COMMAND], figures[COMMAND_BASELINE]
    for name, one in figures.items():
        print(f"{name:30} {one.time:6.1f} ms {one.memory:5.0f} MiB  {', '.join(one.heavy)}")
    print(f"the help takes {command.time / base.time:.2f} of importing {COMMAND_BASELINE} (to reach: {COMMAND_TO_REACH})")


def measure_sandbox(rounds: int) -> None:
    """Print the processor time of a start of the sandbox's function and of a bare handler."""
    times: dict[str, list[float]] = {SANDBOX_START: [], BARE_HANDLER_START: []}
    for _ in range(rounds + 1):  # the first round writes the byte code
        for start_up, taken in times.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", start_up], cwd=SANDBOX, env={"PATH": os.environ["PATH"]}, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    sandbox, bare = min(times[SANDBOX_START]), min(times[BARE_HANDLER_START])
    print(f"the sandbox's function starts in {sandbox:.1f} ms, a bare handler in {bare:.1f} ms", end="; ")
    print(f"it takes {sandbox / bare:.2f} of that (to reach: {SANDBOX_TO_REACH})")


def measure(chosen: Sequence[FunctionStart], rounds: int, python: str) -> dict[str, dict[bool, ColdStartFigures]]:
    """Return the figures of each function by name and by whether it had byte code."""
    target = Target(python=python, machine=platform.machine())
    figures: dict[str, dict[bool, ColdStartFigures]] = {
        started.name: {True: ColdStartFigures(), False: ColdStartFigures()} for started in chosen
    }
    interpreter = bundling.find_compiler(target)
    with TemporaryDirectory() as folder:
        built = build(Path(folder), interpreter, target)
        plain = build_plain(Path(folder), interpreter, built)
        for _ in range(rounds):
            for started in chosen:
                used = plain if started.name == BASELINE else built
                for with_bytecode, bundles in used.items():
                    start(interpreter, started, bundles, figures[started.name][with_bytecode])
                time_imports(interpreter, started, used[True], figures[started.name][True])
    return figures


def needs_numpy(route: Route) -> bool:
    return Permission.EMBEDDING in route.permissions or ".documents" in route.module


def print_starts(figures: Mapping[str, Mapping[bool, ColdStartFigures]]) -> None:
    base = figures[BASELINE][True]
    print(f"{'':30} {'ms':>6} {'without byte code':>18} {'':>6} {'to baseline':>12} {'MiB':>5} {'to baseline':>12}  also imports")
    for name, both in figures.items():
        fast, slow = both[True], both[False]
        print(
            f"{name:30} {fast.time:6.0f} {slow.time:18.0f} {slow.time / fast.time:5.2f}x {fast.time / base.time:11.2f}x"
            f" {fast.memory:5.0f} {fast.memory / base.memory:11.2f}x  {', '.join(fast.heavy)}"
        )


def print_packages(packages: Mapping[str, Mapping[str, float]]) -> None:
    """Print the milliseconds of the own code, the standard library and the packages that take the most."""
    print(f"\n{'ms by -X importtime':30} {'all':>6} {OWN:>9} {STANDARD_LIBRARY:>17}  packages")
    for name, times in packages.items():
        others = [f"{package} {took:.0f}" for package, took in times.items() if package not in (OWN, STANDARD_LIBRARY)]
        print(
            f"{name:30} {sum(times.values()):6.0f} {times.get(OWN, 0):9.0f} {times.get(STANDARD_LIBRARY, 0):17.0f}"
            f"  {', '.join(others[:PACKAGES_SHOWN])}"
        )


def print_goals(figures: Mapping[str, Mapping[bool, ColdStartFigures]], chosen: Sequence[FunctionStart]) -> None:
    base = figures[BASELINE][True]
    of = {name: both for name, both in figures.items() if name != BASELINE}
    ratios = [both[False].time / both[True].time for both in of.values()]
    worst = max(both[True].time for both in of.values()) / base.time
    short = max((of[one.name][True].time for one in chosen if one.short), default=0) / base.time
    memory = max(both[True].memory for both in of.values()) / base.memory
    needing = {route.function_name for route in ROUTES if needs_numpy(route)} | {worker.function_name for worker in WORKERS}
    stray = sorted(name for name, both in of.items() if "numpy" in both[True].heavy and name not in needing)
    print(f"\nwithout byte code {min(ratios):.2f} to {max(ratios):.2f} times as long")
    print(f"against the baseline: slowest {worst:.2f} (to reach: {TO_REACH}), slowest short function {short:.2f}", end=" ")
    print(
        f"({SHORT_TO_REACH}), most memory {memory:.2f} ({MEMORY_TO_REACH}); numpy without need in: {', '.join(stray) or 'none'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="starts of each function, with and without byte code (default 3)")
    parser.add_argument("--python", default=LAMBDA.python, help=f"the version of Python (default {LAMBDA.python}, as in Lambda)")
    parser.add_argument("--command", action="store_true", help="measure the command line and the sandbox's function alone")
    parser.add_argument("functions", nargs="*", help="the functions to measure, e.g. sessions-append (default: all)")
    arguments = parser.parse_args()
    if not arguments.functions:
        measure_command(arguments.rounds)
        measure_sandbox(arguments.rounds)
    if arguments.command:
        return
    every = functions()
    chosen = [one for one in every if not arguments.functions or one.name in arguments.functions]
    if unknown := set(arguments.functions) - {one.name for one in every}:
        parser.error(f"unknown function: {', '.join(sorted(unknown))}. Use one of: {', '.join(one.name for one in every)}")
    try:
        figures = measure([FunctionStart(BASELINE, BASELINE_START), *chosen], arguments.rounds, arguments.python)
    except bundling.BundlingFailed as error:
        raise SystemExit(str(error)) from None
    print_starts(figures)
    print_packages({name: both[True].packages for name, both in figures.items()})
    print_goals(figures, chosen)


if __name__ == "__main__":
    main()
