"""Run an attack: in a confined child, or, to see that it could succeed, in a process that nothing confines."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from spass.core.messages import Json
from tests.child_harness import CHILD, ENVIRONMENT, LIMITS, STARTED, CellOf, Child
from tests.unit.sandbox.attacks import mutant_child
from tests.unit.sandbox.attacks.attack import PRELUDE, Attack
from tests.unit.sandbox.attacks.world import World

CPU_SECONDS: Final = 1
"""Of processor time, so that busy loops end soon."""
_MAX_OUTPUT: Final = 200_000
_STATUS_OF_PROGRAM: Final = 42
_UNCONFINED: Final = "import json, sys\nW = json.loads(sys.argv[1])\nexec(sys.argv[2])"


def mutant_program(mutation: Mapping[str, Json]) -> Sequence[str]:
    """Return the program of a child with another policy. See ``mutant_child``."""
    return [str(Path(mutant_child.__file__)), str(CHILD.parent), json.dumps(dict(mutation))]


class Refused(Exception):
    """The child could not be confined and did not run the code."""


def run_confined(attack: Attack, world: World, program: Sequence[str] = (str(CHILD),), variables: Mapping[str, str] = {}) -> str:
    """Run the attack as a cell of a child. Return everything that the child reported.

    ``variables`` are in the child's environment by mistake.

    Raises:
        Refused: the child could not be confined.
    """
    cell = CellOf(PRELUDE + attack.code, queries=False, max_output_chars=_MAX_OUTPUT)
    start: dict[str, Json] = {
        "started": STARTED,
        "limits": {**LIMITS, "cpu_turn": CPU_SECONDS, "landlock": 1},
        "variables": {"W": world.names()},
        "cells": [cell.line(0)],
        "journal": [],
    }
    with Child(start, world.scratch, program=program, leaked=(world.leaked,), environment={**ENVIRONMENT, **variables}) as child:
        line = child.receive()
        child.close_input()
        if child.ready is None:
            raise Refused(line)
        return json.dumps(line, ensure_ascii=False).replace("\\n", "\n") + _ran(child.wait())


def run_in_one_child(attacks: Sequence[Attack], world: World, program: Sequence[str]) -> Iterator[str]:
    """Run the attacks as the cells of one child, and yield what it reports of each one.

    Raises:
        Refused: the child could not be confined.
    """
    cells = [CellOf(PRELUDE + attack.code, queries=False, max_output_chars=_MAX_OUTPUT).line(0) for attack in attacks]
    start: dict[str, Json] = {
        "started": STARTED,
        "limits": {**LIMITS, "cpu_turn": CPU_SECONDS * len(attacks), "landlock": 1},
        "variables": {"W": world.names()},
        "cells": [],
        "journal": [],
    }
    with Child(start, world.scratch, program=program, leaked=(world.leaked,), environment=ENVIRONMENT) as child:
        for cell in cells:
            child.send({"cell": cell})
            line = child.receive()
            if child.ready is None:
                raise Refused(line)
            yield json.dumps(line, ensure_ascii=False).replace("\\n", "\n")


def run_unconfined(attack: Attack, world: World) -> str:
    """Run the same code as an ordinary program that inherits a descriptor and the environment. Return its output."""
    command = [
        sys.executable,
        "-s",
        "-P",
        "-S",
        "-X",
        "utf8",
        "-c",
        _UNCONFINED,
        json.dumps(world.names()),
        PRELUDE + attack.code,
    ]
    process = subprocess.run(
        command, cwd=world.scratch, env=dict(os.environ), pass_fds=(world.leaked,), capture_output=True, timeout=30, check=False
    )
    return process.stdout.decode(errors="replace") + _ran(process.returncode)


def _ran(status: int) -> str:
    """Return a gain if the process became the program that one of the attacks brings."""
    return "\nGAINED a program" if status == _STATUS_OF_PROGRAM else ""
