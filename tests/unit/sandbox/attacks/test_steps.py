"""Each step of the confinement holds, and is needed: without it, something outside notices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from spass.core.messages import Json
from tests.child_harness import LIMITS, STARTED, CellOf, Child
from tests.unit.sandbox.attacks.attack import Attack
from tests.unit.sandbox.attacks.runs import Refused, mutant_program, run_confined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World
from tests.unit.sandbox.system_call_numbers import numbers_here

HARMLESS = Attack("nothing", "print('ran')")
ENVIRONMENT = next(attack for attack in ATTACKS if attack.name == "the memory in which the environment was")
START: Mapping[str, Json] = {"started": STARTED, "limits": dict(LIMITS), "variables": {}, "cells": [], "journal": []}


def without(*steps: str) -> Mapping[str, Json]:
    return {"steps": list(steps)}


def test_a_child_with_variables_would_show_them_to_the_code(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        variables = {"SPASS_SECRET": world.secret}
        with pytest.raises(Refused, match="SPASS_SECRET"):
            run_confined(ENVIRONMENT, world, mutant_program({}), variables)
        program = mutant_program(without("require_empty_environment"))
        assert "the secret is in the output" in world.gains(run_confined(ENVIRONMENT, world, program, variables))


def test_a_child_in_a_folder_with_files_would_show_them_to_the_code(tmp_path: Path) -> None:
    reading = Attack("what is here", "read('notes.txt')")
    with World(tmp_path) as world:
        (world.scratch / "notes.txt").write_text(world.secret)
        with pytest.raises(Refused, match="not empty"):
            run_confined(reading, world, mutant_program({}))
        program = mutant_program(without("enter_scratch"))
        assert "the secret is in the output" in world.gains(run_confined(reading, world, program))


def test_a_child_that_could_gain_privileges_cannot_confine_itself(tmp_path: Path) -> None:
    with World(tmp_path) as world, pytest.raises(Refused, match="the kernel refused to confine the child"):
        run_confined(HARMLESS, world, mutant_program(without("refuse_privileges")))


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        ({"allow": [numbers_here()["socket"]]}, "the confinement does not hold: a socket can be opened"),
        ({"rights": ["read_dir"]}, "the confinement does not hold: a folder outside can be opened"),
    ],
)
def test_a_child_whose_confinement_does_not_hold_runs_no_code(tmp_path: Path, mutation: Mapping[str, Json], message: str) -> None:
    with World(tmp_path) as world:
        with pytest.raises(Refused, match=message):
            run_confined(HARMLESS, world, mutant_program({**mutation, "verify": True}))
        assert "ran" in run_confined(HARMLESS, world, mutant_program({"verify": True}))


READ_MEMORY = """
import ctypes, struct, sys
PR_CAPBSET_DROP = 24
libc = ctypes.CDLL(None)
libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))
try:
    print(len(open(f"/proc/{sys.argv[1]}/environ", "rb").read()) > 0)
except PermissionError:
    print("refused")
"""


@pytest.mark.parametrize(("mutation", "answer"), [({}, "refused"), (without("hide_memory"), "True")])
def test_another_process_of_the_user_cannot_read_a_child(tmp_path: Path, mutation: Mapping[str, Json], answer: str) -> None:
    with Child(START, tmp_path, program=mutant_program(mutation)) as child:
        child.send({"cell": CellOf("1").line(0)})
        assert child.receive() is not None
        command = [sys.executable, "-S", "-c", READ_MEMORY, str(child.pid)]
        assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() == answer


START_AND_DIE = """
import json, os, subprocess, sys
start, *command = sys.argv[1:]
child = subprocess.Popen(command, env={"PYTHONHASHSEED": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(start.encode() + b"\\n")
child.stdin.flush()
while b"ready" not in child.stdout.readline():
    pass
os.set_inheritable(child.stdin.fileno(), True)
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("mutation", "lives"), [({}, False), (without("end_with_parent"), True)])
def test_a_child_ends_with_its_parent(tmp_path: Path, mutation: Mapping[str, Json], lives: bool) -> None:
    busy = CellOf("while True:\n    pass").line(0)
    start = json.dumps({"token": "0" * 32, **START, "cells": [busy]})
    command = [sys.executable, "-S", "-c", START_AND_DIE, start, sys.executable, "-s", "-P", "-S", "-X", "utf8"]
    parent = subprocess.run([*command, *mutant_program(mutation)], cwd=tmp_path, capture_output=True, check=True, text=True)
    child = int(parent.stdout)
    try:
        assert has_ended(child) != lives
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def has_ended(process: int) -> bool:
    """Return True if the process ends within half a second. The kernel kills it as soon as its parent has ended."""
    for _ in range(50):
        with suppress(FileNotFoundError, ProcessLookupError):
            state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
            if state not in "ZX":
                time.sleep(0.01)
                continue
        return True
    return False
