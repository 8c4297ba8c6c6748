"""Measure a workspace of 10, 1,000 and 5,000 files: processor time, calls of AWS, bytes of the bucket and dollars, beside git.

    python -m bench.workspace [--files N ...] [--rounds N]

The files are parts of the standard library, 2 KB each on average. Tools run as a model calls them, without the audit record that
every tool call writes. The table and the bucket are in memory, so the time is the gateway's own. ``cold`` is a process that holds
no tree yet. git does the same with the same files on the local disk; its time is that of its processes.

Each round does everything once, and the figures are medians. The dollars are list prices of the calls that were counted.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import environ
from pathlib import Path
from typing import Final

from bench.meter import Meter, record_calls
from bench.processes import silence_logs, write_config
from bench.workspace_files import MARKDOWN, Git, make_archives, make_files, path_of
from infra.costs.prices import BUCKET_GB_MONTH, ResourceUsage
from spass.calls.scope import Scope
from spass.core.ids import RequestId, TenantId, UserId, WorkspaceId, new_id
from spass.core.messages import Json, ToolCall
from spass.core.time import Deadline
from spass.tenancy.identity import Caller, Identity
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.tools.grants import ALL_TO_READ, Grants, PathPatterns
from spass.tools.toolset import ToolTurn
from spass.web.services import Services, Settings
from spass.workspaces.archive_in import read_archive
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.service import Workspaces

SIZES: Final = (10, 1000, 5000)
LISTING_MS: Final = 5
FEW: Final = PathPatterns(read=(MARKDOWN,))
AUDIT: Final = "#AUDIT#"
GIGABYTE: Final = 10**9
TABLE: Final = sys.stdout  # the gateway logs to standard output too, which is redirected


@dataclass(slots=True)
class Figures:
    """The milliseconds of a kind of work, and the calls of the last time. git makes no calls."""

    milliseconds: list[float] = field(default_factory=list)
    meter: Meter | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    def count(self, *operations: str) -> int:
        """Return the number of calls of these operations, without audit records."""
        if self.meter is None:
            return 0
        calls = zip(self.meter.calls, self.meter.made, strict=True)
        return sum(made.operation in operations and AUDIT not in str(call.parameters.get("write")) for call, made in calls)

    @property
    def table_calls(self) -> int:
        return self.count("GetItem", "Query", "PutItem", "UpdateItem", "DeleteItem")

    @property
    def transactions(self) -> int:
        return self.count("TransactWriteItems")

    @property
    def gets(self) -> int:
        return self.count("GetObject")

    @property
    def puts(self) -> int:
        return self.count("PutObject")

    def __str__(self) -> str:
        if self.meter is None:
            return f"{self.median:9.2f}"
        calls = f"{self.table_calls:6} {self.transactions:12} {self.gets:5} {self.puts:5}"
        return f"{self.median:9.2f} {calls} {self.meter.bucket_bytes / 1024:9.1f}"


class WorkspaceBench:
    """One workspace with ``files``, and a repository in ``folder`` with the same files."""

    def __init__(self, services: Services, files: Mapping[WorkspacePath, bytes], folder: Path) -> None:
        self._services: Final = services
        self._files: Final = files
        self._archives: Final = make_archives(files)
        self._git: Final = Git(folder / f"git{len(files)}")
        self._folder: Final = folder
        self._figures: Final[dict[str, Figures]] = {}
        self._workspace = WorkspaceId("round-0")

    async def run(self, rounds: int) -> Mapping[str, Figures]:
        """Return the figures by what was done."""
        self._git_time("git add and commit of all files", self._git.commit_all(self._files))
        for number in range(rounds):
            await self._run_workspace(number)
            self._run_git(number)
        return self._figures

    async def _run_workspace(self, number: int) -> None:
        self._workspace = WorkspaceId(f"round-{number}")  # a new one, because a workspace does not store a content twice
        await self._measure("an archive in", self._put_archives)
        works: Mapping[str, Callable[[], Awaitable[None]]] = {
            "read_file": partial(self._call, "read_file", {"path": path_of(len(self._files) // 2)}),
            "list_directory of the root": partial(self._call, "list_directory", {}),
            "list_directory, all depths": partial(self._call, "list_directory", {"depth": 32}),
            "list_directory, few files visible": partial(self._call, "list_directory", {"depth": 32}, FEW),
        }
        for name, work in works.items():
            self._services.workspaces = Workspaces()  # as in a process that holds no tree
            await self._measure(f"{name}, cold", work)
        for name, work in works.items():
            await work()
            await self._measure(f"{name}, warm", work)
        change = self._edit()
        await self._measure("the commit of an edit", lambda: self._commit(change))
        await self._measure("an archive out, warm", self._get_archive)

    def _run_git(self, number: int) -> None:
        self._git_time("git show of a file", self._git.read_file(path_of(len(self._files) // 2)))
        self._git_time("git ls-tree, recursive", self._git.list_files())
        path = path_of(0)
        self._git_time("git commit of an edit", self._git.commit_file(path, self._files[path] + b"# edited %d\n" % number))
        with tempfile.TemporaryDirectory(dir=self._folder) as target:
            self._git_time("git clone", self._git.clone(Path(target) / "clone"))

    def _git_time(self, name: str, seconds: float) -> None:
        self._figures.setdefault(name, Figures()).milliseconds.append(1e3 * seconds)

    async def _measure(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        figures = self._figures.setdefault(name, Figures())
        with record_calls() as figures.meter:
            began = time.process_time()
            await work()
            figures.milliseconds.append(1e3 * (time.process_time() - began))

    def _scope(self) -> Scope:
        identity = Identity(TenantId("bench"), "bench", admin=False, allowed_models=("*",))
        return self._services.scope(Caller(identity, UserId("bench"), RequestId(new_id("req")), None, 0, "bench"))

    async def _call(self, tool: str, arguments: Mapping[str, Json], paths: PathPatterns = ALL_TO_READ) -> None:
        call = ToolCall("call_1", tool, json.dumps(arguments))
        outcome = await self._services.toolbox.execute(
            self._scope(), call, allowed=[tool], turn=ToolTurn(grants=Grants(self._workspace, paths))
        )
        if not outcome.ok:
            raise SystemExit(f"{tool} failed: {outcome.result}")

    def _edit(self) -> Change:
        """Return the change of an edit: one file, if it is as it was read."""
        path = path_of(0)
        before = Change.of({path: self._files[path]}).files[path]
        assert before is not None
        return Change.of({path: self._files[path] + b"# edited\n"}, {path: before.sha256})

    async def _commit(self, change: Change) -> None:
        await self._services.workspaces.open(self._scope().store, self._workspace).commit(change, Author(), Deadline.after(60))

    async def _put_archives(self) -> None:
        """Replace the workspace by the files: the first archive replaces it, the others are merged into it."""
        for number, archive in enumerate(self._archives):
            files = read_archive(archive)
            await self._commit(Change.of(files) if number else Change.replace_all(files))

    async def _get_archive(self) -> None:
        store = self._scope().store
        at = await self._services.workspaces.open(store, self._workspace).tree()
        async for _ in self._services.workspaces.open(store, self._workspace).archive(at):
            pass


async def measure(files: Mapping[WorkspacePath, bytes], rounds: int) -> Mapping[str, Figures]:
    """Return the figures of a workspace with ``files``."""
    with tempfile.TemporaryDirectory() as name:
        settings = Settings.from_environment({**environ, **write_config(Path(name), "http://nowhere.invalid")})
        return await WorkspaceBench(ScriptedServices(settings, ScriptedModel(), MemoryAws()), files, Path(name)).run(rounds)


def show(figures: Mapping[str, Figures], files: Mapping[WorkspacePath, bytes]) -> None:
    title = f"{len(files)} files, {sum(map(len, files.values())) / 2**20:.2f} MiB"
    print(f"{title:42} {'ms':>9} {'table':>6} {'transactions':>12} {'gets':>5} {'puts':>5} {'KiB':>9}", file=TABLE)
    for name, one in sorted(figures.items(), key=lambda item: item[1].meter is None):
        print(f"  {name:40} {one}", file=TABLE)
    read, listing, edit = (
        figures["read_file, warm"],
        figures["list_directory, all depths, warm"],
        figures["the commit of an edit"],
    )
    wanted = {
        "a read is at most one table call and one ranged GET": read.table_calls <= 1 and read.gets <= 1,
        "a commit is at most two PUTs and one transaction": edit.puts <= 2 and edit.transactions <= 1,
        f"a warm listing takes less than {LISTING_MS} ms": listing.median < LISTING_MS,
    }
    for name, is_met in wanted.items():
        print(f"  {name}: {'met' if is_met else 'NOT met'}", file=TABLE)
    print(f"  {price_of_a_gigabyte(edit)}\n", file=TABLE)


def price_of_a_gigabyte(edit: Figures) -> str:
    """Describe what a gigabyte of versions costs, each of one edit."""
    assert edit.meter is not None
    versions = GIGABYTE // edit.meter.bucket_bytes
    usage = ResourceUsage(edit.meter.read_units, edit.meter.write_units, 0, 0, bucket_puts=edit.puts, bucket_gets=edit.gets)
    dollars = sum(usage.dollars(versions).values())
    return f"a gigabyte holds {versions} versions of one edit: {dollars:.2f} USD to write, {BUCKET_GB_MONTH} USD a month to keep"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[*SIZES], help="sizes (default 10 1000 5000)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default 15)")
    options = parser.parse_args()
    with silence_logs():
        for files in map(make_files, options.files):
            show(asyncio.run(measure(files, options.rounds)), files)


if __name__ == "__main__":
    main()
