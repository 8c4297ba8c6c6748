"""Code cannot fill the disk: a child that writes too much is stopped, and nothing of it is left"""

import shutil
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.landlock import missing_for_processes
from spass.sandbox.limits import Limits
from spass.sandbox.process import ProcessLauncher

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes())),
]

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
HIDDEN = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
with open("hidden", "wb") as file:
    file.write(bytes(2**20))
with open("hidden", "rb") as file:
    libc.mmap(None, ctypes.c_size_t(4096), 1, 2, file.fileno(), ctypes.c_long(0))
os.unlink("hidden")
while True:
    pass
"""


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


@pytest.mark.parametrize("code", [MANY_BYTES, MANY_FILES])
async def test_a_child_that_writes_too_much_is_stopped(tmp_path: Path, code: str) -> None:
    result = await run(tmp_path, code)
    assert "wrote too many files" in str(result.error)
    assert left_in(tmp_path) == []


async def test_a_child_is_stopped_when_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usages = chain([2**40], repeat(2**30 - 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=2**40, used=0, free=next(usages)))
    result = await run(tmp_path, HIDDEN)
    assert "the disk is nearly full" in str(result.error)
    assert left_in(tmp_path) == []
