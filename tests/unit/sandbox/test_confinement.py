"""The child confines itself before the first cell, and ends if it cannot."""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spass.core.messages import Json
from spass.sandbox.child import landlock
from tests.child_harness import CHILD, LIMITS, STARTED, CellOf, Child, Line

ENVIRONMENT: Mapping[str, str] = {"PYTHONHASHSEED": "0"}
START: Mapping[str, Json] = {"started": STARTED, "limits": dict(LIMITS), "variables": {}, "cells": [], "journal": []}


def first_line(folder: Path, *, environment: Mapping[str, str] = ENVIRONMENT, **limits: object) -> Line:
    """Return the only line of a child without cells. A child that is not confined ends after it."""
    token = secrets.token_hex(16)
    command = [sys.executable, "-s", "-P", "-S", "-X", "utf8", str(CHILD)]
    start = {"token": token, **START, "limits": {**LIMITS, **limits}}
    run = subprocess.run(
        command, input=json.dumps(start).encode() + b"\n", cwd=folder, env=dict(environment), capture_output=True, check=True
    )
    (text,) = [line for line in run.stdout.decode().splitlines() if line.startswith(token)]
    line: Line = json.loads(text.partition(" ")[2])
    return line


def test_the_child_reports_what_confines_it(tmp_path: Path) -> None:
    assert first_line(tmp_path) == {"ready": {"seccomp": True, "landlock": landlock.version()}}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"landlock": 99}, "the kernel offers version {version} of Landlock; version 99 is required"),
        ({"memory": "much"}, "the limit 'memory' must be a whole number, not 'much'"),
        ({"memory": -1}, "the limit 'memory' must be a whole number, not -1"),
        ({"cpu_turn": None}, "the limit 'cpu_turn' must be a whole number, not None"),
        ({"cpu_turn": True}, "the limit 'cpu_turn' must be a whole number, not True"),
    ],
)
def test_a_child_that_cannot_be_confined_says_why_and_ends(tmp_path: Path, limits: Mapping[str, Any], message: str) -> None:
    expected = message.format(version=landlock.version())
    assert first_line(tmp_path, **limits) == {"refused": expected}


def test_a_child_does_not_run_with_variables_in_its_environment(tmp_path: Path) -> None:
    line = first_line(tmp_path, environment={**ENVIRONMENT, "SPASS_KEY": "sk-planted", "HOME": "/"})
    assert line == {"refused": "the child was started with variables in its environment: HOME, SPASS_KEY"}


def test_a_child_does_not_run_in_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "left.txt").touch()
    assert first_line(tmp_path) == {"refused": f"the scratch folder {tmp_path} is not empty"}


def test_the_kernel_confirms_the_confinement(tmp_path: Path) -> None:
    with Child(START, tmp_path) as child:
        child.send({"cell": CellOf("1").line(0)})
        assert child.receive() is not None
        process = Path("/proc") / str(child.pid)
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        limits = (process / "limits").read_text()
        descriptors = [*(process / "fd").iterdir()]
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {f"{0:016x}"}
    assert len(descriptors) == 5
    bounds = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()[1:]}
    assert bounds["Max address space"] == [str(LIMITS["memory"])] * 2
    assert bounds["Max cpu time"] == [str(LIMITS["cpu_turn"])] * 2
    assert bounds["Max file size"] == [str(16 * 2**20)] * 2
    assert bounds["Max open files"] == ["24"] * 2
    assert bounds["Max processes"] == ["0"] * 2
    assert bounds["Max core file size"] == ["0"] * 2
    assert bounds["Max stack size"] == [str(8 * 2**20)] * 2
