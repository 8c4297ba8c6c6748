"""Code cannot fill the disk: a child that writes too much is stopped, and nothing of it is left"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult, Queries
from spass.sandbox.child_process import ChildProcess
from spass.sandbox.disk import measure_folder
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.launchers import missing_for_processes
from spass.sandbox.limits import Limits
from spass.sandbox.process import ProcessLauncher

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes())),
]

QUERIES = Queries(None, 0.3, 100, 100)
MANY_BYTES = """
for number in range(6):
    with open(str(number), "wb") as file:
        file.write(bytes(15 * 2**20))
while True:
    pass
"""
MANY_FILES = """
import os
for number in range(1_001):
    os.mkdir(str(number))
while True:
    pass
"""
HIDING = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def hide(name):
    with open(name, "w+b") as file:
        file.write(bytes(2**20))
        file.flush()
        libc.mmap(None, ctypes.c_size_t(4096), 1, 2, file.fileno(), ctypes.c_long(0))
    os.unlink(name)
"""
MAPPED = f"""{HIDING}
for number in range(5):
    hide(str(number))
while True:
    pass
"""
MAPPED_WITH_LINE_ENDS = f"""{HIDING}
for number in range(5):
    hide(f"x{{number}}\\r1 2 3 4 5 z")
while True:
    pass
"""
HIDDEN = f"{HIDING}hide('hidden')\nwhile True: pass"
UNREADABLE = """
import os
os.mkdir("hiding", 0o300)
for number in range(20):
    open(f"hiding/{number}", "wb").close()
while True:
    pass
"""
DEEP = """
import os
for _ in range(30):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
while True:
    pass
"""
OPEN = """
import os
files = []
for number in range(4):
    files.append(open(str(number), "wb"))
    files[-1].write(bytes(2**16))
    os.unlink(str(number))
llm_query("opened")
while True:
    pass
"""
LARGE = """
open("large", "wb").write(bytes(3 * 2**20))
llm_query("written")
while True:
    pass
"""
SMALL_AND_OPEN = """
files = [open(f"{number}.csv", "w") for number in range(4)]
for file in files:
    file.write("a,b\\n")
llm_query("wait")
print("done")
"""
AS_MANY_AS_POSSIBLE = """
import os
files = []
try:
    while True:
        files.append(open("removed", "wb"))
        os.unlink("removed")
except OSError as error:
    print(len(files), error.strerror)
"""
ORDINARY = """
import mmap, os, tempfile
open("large", "wb").write(bytes(2 * 2**20))
with tempfile.TemporaryFile() as file:
    file.write(bytes(2**20))
    file.flush()
    with mmap.mmap(file.fileno(), 0) as mapped:
        os.makedirs("a/b", mode=0o700)
        llm_query("wait")
        print(len(mapped), os.listdir("a"), os.path.getsize("large"))
"""
MOVING = """
import os, time
os.makedirs("a/moving")
os.mkdir("b")
for number in range(20):
    open(f"a/moving/{number}", "w").close()
print(flush=True)
while True:
    for here, there in ("ab", "ba"):
        os.rename(f"{here}/moving", f"{there}/moving")
        time.sleep(0.02)
"""
AS_ORDINARY_USER = """
import asyncio, ctypes, json, struct, sys
from pathlib import Path
from spass.core.effects import Cell
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.limits import Limits
from spass.sandbox.process import ProcessLauncher

PR_CAPBSET_DROP = 24
libc = ctypes.CDLL(None)
for capability in range(64):
    libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))

async def run(name, code):
    turn = TurnInterpreter(launcher, "tenant", name, Limits(cell_cpu=20))
    try:
        return name, (await turn.run(Cell(code), (), None)).error
    finally:
        await turn.close()

async def main():
    return dict(await asyncio.gather(*(run(name, code) for name, code in json.load(sys.stdin).items())))

launcher = ProcessLauncher(temporary=Path(sys.argv[1]))
print(json.dumps(asyncio.run(main())))
"""
"""Run codes in a process without the capabilities of root, and print their errors."""


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def left_in(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


async def run(folder: Path, code: str) -> CellResult:
    async def refuse(_: Sequence[CodeRequest]) -> Sequence[CallReply]:
        raise AssertionError("the code calls the outside")

    turn = TurnInterpreter(ProcessLauncher(temporary=folder), "tenant", "owner", Limits(cell_cpu=20))
    try:
        return await turn.run(Cell(code), (), refuse)
    finally:
        await turn.close()


@pytest.mark.parametrize(("code", "fault"), [(MANY_BYTES, "wrote more than 64 MiB"), (MANY_FILES, "wrote too many files")])
async def test_a_child_that_writes_too_much_is_stopped(tmp_path: Path, code: str, fault: str) -> None:
    result = await run(tmp_path, code)
    assert f"The code {fault} and was stopped" in str(result.error)
    assert left_in(tmp_path) == []


def test_a_child_that_hides_its_files_is_stopped_for_every_user(tmp_path: Path) -> None:
    codes = {
        "unreadable": UNREADABLE,
        "deep": DEEP,
        "mapped": MAPPED,
        "line ends": MAPPED_WITH_LINE_ENDS,
        "many files": MANY_FILES,
    }
    command = [sys.executable, "-c", AS_ORDINARY_USER, str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(codes), capture_output=True, text=True, check=True)
    faults = {
        name: error.removeprefix("The code ").partition(" and was stopped")[0] for name, error in json.loads(done.stdout).items()
    }
    assert faults == {
        "unreadable": "made a folder whose files cannot be counted",
        "deep": "made a folder whose files cannot be counted",
        "mapped": "mapped more than 4 files that it had removed",
        "line ends": "mapped more than 4 files that it had removed",
        "many files": "wrote too many files",
    }
    assert left_in(tmp_path) == []


async def test_a_child_is_stopped_when_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usages = chain([2**40], repeat(2**30 - 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=2**40, used=0, free=next(usages)))
    result = await run(tmp_path, HIDDEN)
    assert "the disk is nearly full" in str(result.error)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("hostile", "code", "output"), [(OPEN, ORDINARY, "1048576 ['b'] 2097152\n"), (LARGE, SMALL_AND_OPEN, "done\n")]
)
async def test_the_child_that_filled_the_disk_is_stopped_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str, code: str, output: str
) -> None:
    """The room of removed files is free when their child has ended."""
    free = 2**40
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=2**40, used=0, free=free))
    launcher = ProcessLauncher(temporary=tmp_path, slots=2)
    waits, has_ended = asyncio.Event(), asyncio.Event()

    async def wait(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        waits.set()
        await has_ended.wait()
        return [CallReply("") for _ in requests]

    async def fill(requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        nonlocal free
        await waits.wait()
        free = 0
        return [CallReply("") for _ in requests]

    async def take_all() -> CellResult:
        nonlocal free
        turn = TurnInterpreter(launcher, "hostile", "hostile", Limits(cell_cpu=20))
        try:
            return await turn.run(Cell(hostile, queries=QUERIES), (), fill)
        finally:
            await turn.close()
            free = 2**40
            has_ended.set()

    other = TurnInterpreter(launcher, "other", "other", Limits(cell_cpu=20))
    stopped, ran = await asyncio.gather(take_all(), other.run(Cell(code, queries=QUERIES), (), wait))
    await other.close()
    assert "took the most room while the disk is nearly full" in str(stopped.error)
    assert ran == CellResult(output)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "write",
    [
        "open('x', 'w').write('y' * 10**5)",
        "import tempfile\nfile = tempfile.TemporaryFile()\nfile.write(b'y' * 10**5)\nfile.flush()",
        "files = [open(str(n), 'w') for n in range(4)]\nfor f in files: f.write('y' * 10)",
    ],
)
async def test_code_that_takes_little_runs_on_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=2**40, used=2**40, free=0))
    assert await run(tmp_path, f"{write}\nprint(sum(range(10**7)))") == CellResult("49999995000000\n")


async def test_code_can_keep_few_removed_files_open(tmp_path: Path) -> None:
    """No folder shows their room, at most 16 MiB each."""
    assert await run(tmp_path, AS_MANY_AS_POSSIBLE) == CellResult("19 Too many open files\n")


def test_files_that_are_removed_while_a_folder_is_listed_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    for number in range(40):
        (tmp_path / "folder" / str(number)).touch()
    real = os.scandir

    @contextmanager
    def scandir(descriptor: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(descriptor) as entries:
            listed = list(entries)
            for entry in listed[: len(listed) // 2]:
                if entry.name.isdigit():
                    os.unlink(entry.name, dir_fd=descriptor)
            yield iter(listed)

    monkeypatch.setattr(os, "scandir", scandir)
    assert measure_folder(tmp_path, 10, nullcontext).fault is not None  # the folder is listed twice, and ten are left
    assert measure_folder(tmp_path, 10, nullcontext).fault is None


async def test_a_child_that_renames_its_files_all_the_time_hides_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(descriptor: int) -> Iterator[os.DirEntry[str]]:
        """List a folder while its files are elsewhere, as happens by chance, unless the child does nothing for 0.5 s."""
        give_up = time.monotonic() + 0.5
        while "moving" in os.listdir(descriptor) and time.monotonic() < give_up:
            pass
        return real(descriptor)

    child = ChildProcess([sys.executable, "-c", MOVING], folder=tmp_path, environment={})
    try:
        await child.connect()
        await child.receive()
        monkeypatch.setattr(os, "scandir", scandir)
        assert measure_folder(tmp_path, 10, child.stopped).fault == "wrote too many files"
    finally:
        child.kill()
