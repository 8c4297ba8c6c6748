"""The gateway's life on a laptop: it stops in order, leaves nothing running, and keeps what it was told."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local.home import ROOT
from tests.e2e.conftest import Gateway

BERLIN = [
    {"id": "gate", "text": "Das Brandenburger Tor steht am Pariser Platz, gebaut 1791.", "metadata": {}},
    {"id": "park", "text": "Der Tiergarten ist der größte Park Berlins.", "metadata": {}},
]


def test_what_was_written_survives_a_restart_with_nothing_embedded_again(new_gateway: Callable[[], Gateway]) -> None:
    first = new_gateway()
    first.start()
    with first.client() as client:
        client.post("/a1/rag/indices/berlin/documents", json={"documents": BERLIN}).raise_for_status()
        session = client.post("/a1/agents/concise-de/sessions", json={}).raise_for_status().json()
        messages = f"/a1/agents/concise-de/sessions/{session['id']}/messages"
        client.post(messages, json={"message": "Mein Lieblingssport ist Tennis."}).raise_for_status()
        documents = client.get("/a1/rag/indices/berlin/documents").json()["documents"]
    objects = _objects(first.home)
    assert first.stop() == 0

    second = new_gateway()
    second.start()
    with second.client() as client:
        assert client.get("/a1/rag/indices/berlin/documents").json()["documents"] == documents
        assert _objects(second.home) == objects  # the very same segments
        found = client.post("/a1/rag/indices/berlin/query", json={"query": "Wo ist der größte Park?", "top_k": 1}).json()
        assert (found["results"][0]["id"], found["version"]) == ("park", 1)
        answer = client.post(messages, json={"message": "Welcher Sport ist mein Liebling?"}).json()
        assert "Tennis" in answer["message"]["content"]
        assert [message["seq"] for message in client.get(messages).json()["messages"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_return_to_the_shell_and_leave_no_process(
    new_gateway: Callable[[], Gateway], how: signal.Signals
) -> None:
    gateway = new_gateway()
    gateway.start()
    children = _children(gateway.pid)
    assert len(children) == 2  # the emulated AWS and the stand-in
    assert gateway.stop(how) == 0
    assert not [pid for pid in children if _lives(pid)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only /proc tells which signals a process catches")
def test_ctrl_c_while_it_still_loads_ends_it_without_a_word(tmp_path: Path) -> None:
    process = _started({"PORT": str(_free_port()), "SPASS_HOME": str(tmp_path / "home")})
    while not _catches(process.pid, signal.SIGTERM):  # the interpreter itself only catches SIGINT
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")


def test_ctrl_c_while_it_starts_loses_nothing_and_the_next_start_knows_it(new_gateway: Callable[[], Gateway]) -> None:
    gateway = new_gateway()
    process = _started({"PORT": str(gateway.port), "SPASS_HOME": str(gateway.home)})
    log = gateway.home / "logs" / "ministack.log"
    while not log.exists():  # from here on there are children
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "\nStopped; the state is kept.\n")

    gateway.start()
    assert "Spass serves on" in gateway.output
    assert "killed" not in gateway.output


def test_an_impatient_ctrl_c_is_one_ctrl_c(new_gateway: Callable[[], Gateway]) -> None:
    gateway = new_gateway()
    gateway.start()
    with gateway.client() as client:
        client.post("/a1/agents/concise-de/sessions", json={"title": "kept"}).raise_for_status()
    for _ in range(20):
        os.kill(gateway.pid, signal.SIGINT)
        time.sleep(0.02)
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.output

    gateway.start()
    assert "killed" not in gateway.output
    with gateway.client() as client:
        assert [s["title"] for s in client.get("/a1/agents/concise-de/sessions").json()["sessions"]] == ["kept"]


def test_what_can_be_no_key_stops_the_start(tmp_path: Path) -> None:
    ended = _run({"PORT": str(_free_port()), "SPASS_HOME": str(tmp_path / "home"), "ANTHROPIC_API_KEY": "sk-ant-…"})
    assert ended.returncode == 1
    assert "ANTHROPIC_API_KEY" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_was_written_survives_even_when_the_gateway_is_killed(new_gateway: Callable[[], Gateway]) -> None:
    first = new_gateway()
    first.start()
    with first.client() as client:
        client.post("/a1/agents/concise-de/sessions", json={"title": "kept"}).raise_for_status()
    children = _children(first.pid)
    first.stop(signal.SIGKILL)

    second = new_gateway()
    second.start()  # waits for the children of the first
    assert not [pid for pid in children if _lives(pid)]
    with second.client() as client:
        assert [s["title"] for s in client.get("/a1/agents/concise-de/sessions").json()["sessions"]] == ["kept"]


def test_a_taken_port_is_said_clearly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = _run({"PORT": str(port), "SPASS_HOME": str(tmp_path / "home")})
    assert ended.returncode == 1
    assert f"Port {port} cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_gateway_in_the_same_home_is_refused(gateway: Gateway) -> None:
    ended = _run({"PORT": "0", "SPASS_HOME": str(gateway.home)}, "--port", str(_free_port()))
    assert ended.returncode == 1
    assert "already runs with its state in" in ended.stderr


def test_a_mistake_in_gateway_yaml_stops_the_start_with_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("llm:\n  retrys: 3\n")
    ended = _run({"PORT": str(_free_port()), "SPASS_HOME": str(tmp_path / "home"), "SPASS_CONFIG": str(config)})
    assert ended.returncode == 1
    assert "mine.yaml:2" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_mistake_in_an_agent_stops_the_start_with_file_and_line(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "mine.yaml").write_text("name: mine\nmodel: no-such-model\nsystem_prompt: Hello\n")
    ended = _run({"PORT": str(_free_port()), "SPASS_HOME": str(tmp_path / "home"), "SPASS_AGENTS": str(agents)})
    assert ended.returncode == 1
    assert "mine.yaml:2" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "home" / "aws").glob("*.tmp"))  # the emulator had time to stop


def _run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "local", *arguments],
        cwd=ROOT,
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _started(environment: dict[str, str]) -> "subprocess.Popen[str]":
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-m", "local", "--offline"],
        cwd=ROOT,
        env=os.environ | paths | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _objects(home: Path) -> dict[str, int]:
    return {str(file.relative_to(home)): file.stat().st_mtime_ns for file in (home / "s3").rglob("*.npy")}


def _children(pid: int) -> list[int]:
    return [int(child) for child in subprocess.check_output(["pgrep", "-P", str(pid)], text=True).split()]


def _lives(pid: int) -> bool:
    """Whether a process is still there (a zombie that nobody has reaped yet is not)."""
    for _ in range(20):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
        if not state or state.startswith("Z"):
            return False
        time.sleep(0.1)
    return True
