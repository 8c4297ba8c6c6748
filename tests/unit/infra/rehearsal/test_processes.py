"""The programs of a rehearsal end with it, and a failure names the log."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.rehearsal.processes import RehearsalFailed, free_port, run, server

LISTENING = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
listener.accept()
sys.stdin.read()
"""
VARIABLES = dict(os.environ)


def has_ended(process: int) -> bool:
    """Wait until a process has ended, which a signal does not do at once."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False).stdout
        if not state.strip() or state.startswith("Z"):
            return True
        time.sleep(0.01)
    return False


def test_a_server_ends_with_what_it_has_started(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    with server("it", [sys.executable, "-c", LISTENING, str(port)], port=port, log=log, environment=VARIABLES) as running:
        child = int(log.read_text())
        running.check()
        os.kill(child, 0)
    assert has_ended(child)


def test_a_server_that_dies_is_named_with_its_log(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    command = [sys.executable, "-c", f"{LISTENING.replace('sys.stdin.read()', 'sys.exit(3)')}", str(port)]
    with server("the emulator", command, port=port, log=log, environment=VARIABLES) as running:
        socket.create_connection(("127.0.0.1", port)).close()
        while running.failure() is None:
            time.sleep(0.01)
        with pytest.raises(RehearsalFailed, match="the emulator ended with status 3") as failed:
            running.check()
    assert failed.value.log == log
    assert has_ended(int(log.read_text()))


def test_a_taken_port_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        expected = f"Port {port} of the emulator is taken"
        with (
            pytest.raises(RehearsalFailed, match=expected),
            server("the emulator", ["false"], port=port, log=tmp_path / "log", environment=VARIABLES),
        ):
            pytest.fail("it was started")
    assert not (tmp_path / "log").exists()


def test_a_program_that_fails_says_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(["echo", "first"], log=log, environment=VARIABLES) == "first\n"
    with pytest.raises(RehearsalFailed, match="sh ended with status 4:\nsecond") as failed:
        run(["sh", "-c", "echo second; exit 4"], log=log, environment=VARIABLES)
    assert failed.value.log == log
    assert log.read_text() == "first\nsecond\n"


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with pytest.raises(RehearsalFailed, match="did not end within"):
        run(["sh", "-c", "echo $$; sleep 600 & wait"], log=tmp_path / "log", environment=VARIABLES, seconds=0.3)
    assert has_ended(int((tmp_path / "log").read_text()))
