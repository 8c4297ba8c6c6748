"""The supervisor ends with its program and ends everything below it, also when the gateway is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from spass.sandbox.foreign import supervisor
from tests.unit.sandbox.process_list import wait_for_processes

SUPERVISOR = (sys.executable, "-I", "-S", str(Path(supervisor.__file__)))
START = """
import os, subprocess, sys, time
command = [sys.executable, "-S", "-c", "import time; time.sleep(60)", sys.argv[1]]
subprocess.Popen(command)
subprocess.Popen(command, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    os.fork()
    time.sleep(60)
"""


def command(code: str, mark: str = "") -> list[str]:
    return [*SUPERVISOR, sys.executable, "-S", "-c", code, mark]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("import os; os.abort()", 134)],
)
def test_its_exit_code_is_that_of_the_program(code: str, expected: int) -> None:
    assert subprocess.run(command(code), check=False, timeout=20).returncode == expected


def test_the_program_has_the_pipes_and_the_environment() -> None:
    code = "import os, sys; print(sorted(os.environ), sys.stdin.read(), os.getcwd())"
    done = subprocess.run(
        command(code), input="x", capture_output=True, text=True, cwd="/", env={"A": "1"}, check=True, timeout=20
    )
    assert done.stdout.split() == ["['A',", "'LC_CTYPE']", "x", "/"] or done.stdout.split() == ["['A']", "x", "/"]
    assert done.stderr == ""


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([*SUPERVISOR, str(tmp_path / "no")], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "The program cannot be started: No such file or directory\n"


@pytest.mark.parametrize("end", ["", "raise SystemExit(1)", "os.abort()"])
def test_nothing_outlives_the_program(end: str) -> None:
    mark = uuid4().hex
    subprocess.run(command(START + end, mark), check=False, timeout=20)
    wait_for_processes(mark, 0)


def test_sigterm_ends_everything() -> None:
    mark = uuid4().hex
    with subprocess.Popen(command(START + "time.sleep(60)", mark)) as process:
        wait_for_processes(mark, 6, 20)
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM
    wait_for_processes(mark, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_death_of_the_gateway_ends_everything() -> None:
    mark = uuid4().hex
    gateway = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", gateway, *command(START + "time.sleep(60)", mark)]) as process:
        wait_for_processes(mark, 7, 20)
        os.kill(process.pid, signal.SIGKILL)
    wait_for_processes(mark, 0)
