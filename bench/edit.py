"""Measure an edit from the call of ``aider_edit`` to the new version, with a model that answers at once.

    python -m bench.edit [--processes N] [--edits N]

Every process makes one ``cold`` edit, after the editor's packages have left the memory of the operating system, and then warm
ones. An edit changes one line of one file in a workspace of 1,000 files. The table and the bucket are in memory; the editor's
child process, audit, cost and defence are the gateway's. Times are seconds of the clock and, in brackets, of the processors, for
the gateway and the child together. The memory is the most that the child had at a time (Linux only). The layer is that of a
deployment, for this machine's processor, with byte code. The dollars are list prices of the calls that one edit makes, and of
the function's time with a model that needs 5 s.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.meter import record_calls
from bench.processes import silence_logs, write_config
from bench.workspace_files import make_files
from infra import bundling
from infra.bundling import LAMBDA, Target
from infra.costs.prices import ResourceUsage
from infra.routes import ROUTES
from spass.core.ids import RequestId, TenantId, UserId, WorkspaceId, new_id
from spass.core.messages import FinishReason, TokenUsage, ToolCall
from spass.core.time import Deadline
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.tenancy.identity import Caller, Identity
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import Deltas, ScriptedModel
from spass.tools.grants import Grants, PathPatterns
from spass.tools.toolset import ToolTurn
from spass.web.services import Settings
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import WorkspacePath

if TYPE_CHECKING:
    from collections.abc import Iterator

WARM_SECONDS: Final = 1.5
CHILD_MB: Final = 100
LAYER_MB: Final = 30
MODEL_SECONDS: Final = 5
EDITS: Final = 1000
MODEL: Final = "bench-model"
WORKSPACE: Final = WorkspaceId("default")
CHILD: Final = "spass.tools.editor.child"
FILE: Final = WorkspacePath("src/main.py")
ROOT: Final = Path(__file__).parent.parent
TABLE: Final = sys.stdout  # the gateway logs to standard output too, which is redirected


@dataclass(slots=True)
class ProcessFigures:
    """The edits of one process: seconds of the clock and of processors, the first one cold. ``child_bytes`` is 0 if the operating
    system does not tell."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    child_bytes: int = 0
    read_units: float = 0
    write_units: float = 0
    puts: int = 0
    gets: int = 0


class EditBench:
    """A gateway in this process, and a workspace."""

    def __init__(self, folder: Path) -> None:
        settings = Settings.from_environment({**os.environ, **write_config(folder, "http://nowhere.invalid")})
        self._services: Final = ScriptedServices(settings, ScriptedModel(self._answer), MemoryAws())
        self._edits = 0

    async def run(self, edits: int) -> ProcessFigures:
        """Make one cold edit and ``edits`` warm ones."""
        files = {**make_files(999), FILE: self._text(0).encode()}
        store = self._services.aws.for_tenant(TenantId("bench"))
        await self._services.workspaces.open(store, WORKSPACE).commit(Change.replace_all(files), Author(), Deadline.after(60))
        figures = ProcessFigures()
        for _ in range(edits + 1):
            began, used = time.perf_counter(), processor_seconds()
            await self._edit()
            figures.seconds.append(time.perf_counter() - began)
            figures.processor.append(processor_seconds() - used)
        with record_calls() as meter:
            await self._edit()
        figures.read_units, figures.write_units = meter.read_units, meter.write_units
        figures.puts, figures.gets = meter.counted()["s3", "PutObject"], meter.counted()["s3", "GetObject"]
        with watch_child() as peak:
            await self._edit()
        figures.child_bytes = peak[0]
        return figures

    async def _edit(self) -> None:
        identity = Identity(TenantId("bench"), "bench", admin=False, allowed_models=("*",))
        scope = self._services.scope(Caller(identity, UserId("bench"), RequestId(new_id("req")), None, 0, "bench"))
        call = ToolCall("call_1", "aider_edit", json.dumps({"message": "Count on.", "files": [FILE]}))
        grants = Grants(WORKSPACE, PathPatterns(write=("src/",)))
        outcome = await self._services.toolbox.execute(scope, call, allowed=[call.name], turn=ToolTurn(MODEL, grants))
        if not (isinstance(outcome.result, dict) and outcome.result.get("version") == self._edits + 1):
            raise SystemExit(f"the edit failed: {outcome.result}")

    def _answer(self, _: ChatRequest, __: CallContext) -> Deltas:
        """Return an answer that changes the number in the file."""
        before = f"    return {self._edits}\n"
        self._edits += 1
        block = f"{FILE}\n```python\n<<<<<<< SEARCH\n{before}=======\n    return {self._edits}\n>>>>>>> REPLACE\n```\n"
        return [ChatDelta(block, finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]

    @staticmethod
    def _text(number: int) -> str:
        return f"def main():\n    return {number}\n\n\n" + "".join(f"def part{n}():\n    pass\n\n\n" for n in range(50))


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@contextmanager
def watch_child() -> "Iterator[list[int]]":
    """Yield a list that holds the peak resident memory of this process's child, in bytes, when the block has ended.

    The usage that the kernel keeps of an ended child would not do: it includes the memory of the process that started it.
    """
    peak, ended = [0], threading.Event()

    def watch() -> None:
        child: Path | None = None
        while not ended.wait(0.002):
            child = child or _find_child()
            if child is not None:
                peak[0] = max(peak[0], _peak_bytes(child))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _find_child() -> Path | None:
    """Return the folder in ``/proc`` of the child. Before it has its own command line, it shares this process's memory."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and CHILD in stat.with_name("cmdline").read_text():
                return stat.parent
        except OSError:  # the process has ended
            continue
    return None


def _peak_bytes(process: Path) -> int:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def forget_files(folder: Path) -> None:
    """Ask the operating system to drop its copies of the files of ``folder``."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def layer_bytes() -> int:
    """Return the size of the editor's layer, unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        target = Target(python=LAMBDA.python, machine=platform.machine())
        requirements = ROOT / "requirements" / "editor.txt"
        bundling.editor_layer(Path(folder), requirements, compiler=bundling.find_compiler(), target=target)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def run_process(packages: Path, edits: int) -> ProcessFigures:
    forget_files(packages)
    command = [sys.executable, "-m", "bench.edit", "--process", "--edits", str(edits)]
    environment = {**os.environ, "SPASS_EDITOR": str(packages)}
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return ProcessFigures(**json.loads(done.stdout))


def report(processes: Sequence[ProcessFigures], layer: int) -> None:
    warm = statistics.median([seconds for process in processes for seconds in process.seconds[1:]])
    memory = max(process.child_bytes for process in processes) / 1e6
    cold = [process.seconds[0] for process in processes], [process.processor[0] for process in processes]
    warm_processor = [seconds for process in processes for seconds in process.processor[1:]]
    print(f"an edit, cold: {statistics.median(cold[0]):.2f} s ({statistics.median(cold[1]):.2f} s)", file=TABLE)
    verdict = _verdict(warm < WARM_SECONDS, f"{WARM_SECONDS} s")
    print(f"an edit, warm: {warm:.2f} s ({statistics.median(warm_processor):.2f} s){verdict}", file=TABLE)
    print(f"memory of the child: {memory:.0f} MB{_verdict(0 < memory < CHILD_MB, f'{CHILD_MB} MB')}", file=TABLE)
    size = layer / 1e6
    print(f"the layer, unpacked: {size:.1f} MB{_verdict(size < LAYER_MB, f'{LAYER_MB} MB')}", file=TABLE)
    print(describe_price(processes[0], warm), file=TABLE)


def _verdict(is_met: bool, bound: str) -> str:
    return f" (to reach: {bound}: {'met' if is_met else 'NOT met'})"


def describe_price(figures: ProcessFigures, seconds: float) -> str:
    """Describe what ``EDITS`` edits add to their turns. The turn's own calls and invocation are not part of it."""
    memory = next(route.memory for route in ROUTES if route.module == "sessions.append")
    usage = ResourceUsage(
        figures.read_units,
        figures.write_units,
        gb_seconds=(seconds + MODEL_SECONDS) * memory / 1024,
        invocations=0,
        bucket_puts=figures.puts,
        bucket_gets=figures.gets,
    )
    dollars = {service: float(cost) for service, cost in usage.dollars(EDITS).items() if cost}
    parts = ", ".join(f"{cost:.4f} {service}" for service, cost in dollars.items())
    return (
        f"{EDITS} edits, each with {MODEL_SECONDS} s of its model: {sum(dollars.values()):.2f} USD ({parts}); one uses "
        f"{figures.read_units:g} read and {figures.write_units:g} write units, {figures.gets} gets and {figures.puts} puts"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5, help="processes, each with one cold edit (default 5)")
    parser.add_argument("--edits", type=int, default=8, help="warm edits of each process (default 8)")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        with tempfile.TemporaryDirectory() as folder, silence_logs():
            figures = asyncio.run(EditBench(Path(folder)).run(options.edits))
        print(json.dumps(asdict(figures)))
        return
    packages = Path(os.environ.get("SPASS_EDITOR", ROOT / ".venv-editor"))
    if not (packages / "aider").is_dir():
        raise SystemExit(f"{packages} does not hold the editor. Run: make bench-env")
    report([run_process(packages, options.edits) for _ in range(options.processes)], layer_bytes())


if __name__ == "__main__":
    main()
