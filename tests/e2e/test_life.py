"""Start, stop and kill the local gateway: it stops in order, leaves no process, keeps its data and continues its work."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from local.home import ROOT
from local.processes import free_port
from operate.checkout import read_commit
from tests.e2e.conftest import START_SECONDS, Gateway
from tests.e2e.upload_client import documents, has_ended, put, upload
from tests.stream_grammar import of_type, parse_events

BERLIN: Final = [
    {"id": "gate", "text": "Das Brandenburger Tor steht am Pariser Platz, gebaut 1791.", "metadata": {}},
    {"id": "park", "text": "Der Tiergarten ist der größte Park Berlins.", "metadata": {}},
]
STOP_SECONDS: Final = 30
"""A stop does not wait for an ingestion, which would take longer."""
SESSIONS: Final = "/a1/agents/concise-de/sessions"
LARGE: Final = 200
SMALL: Final = 600
"""Documents of the files that are ingested while the gateway ends."""


def _large(good: int) -> bytes:
    """Return a file of several parts. Most lines are refused, which is fast; ``good`` lines are documents."""
    refused = json.dumps({"id": "refused", "text": "x" * 9000, "metadata": {}}) + "\n"
    lines = [json.dumps({"id": f"d{number}", "text": f"Dokument {number}", "metadata": {}}) + "\n" for number in range(good)]
    content = "".join(line + refused * (1 + 18 * 2**20 // len(refused) // good) for line in lines).encode()
    assert len(content) > 16 * 2**20, "the file must have several parts"
    return content


class Work:
    """A director's edit, which waits for an approval, and what the gateway tells about it."""

    CHAT: Final = "/c1/agents/dir-devsecops/chat"

    def __init__(self, client: httpx.Client) -> None:
        self.stream = self._ask(client, "Create infra/main.tf")
        events = parse_events(self.stream)
        (waiting,) = of_type(events, "approval")
        self.approval = f"/a1/approvals/{waiting['approval']['id']}"
        self.session = f"/a1/agents/dir-devsecops/sessions/{events[0]['session_id']}"
        self.told = self._tell(client)

    def check_and_continue(self, client: httpx.Client) -> None:
        """Assert that a gateway tells the same and sends the same stream, and that the call can be approved."""
        assert self._tell(client) == self.told
        assert client.get(f"{self.CHAT}/m-1").text == self.stream
        decided = client.post(self.approval, json={"decision": "approve"}).raise_for_status().json()
        assert (decided["status"], decided["result"]["version"]) == ("executed", 2)
        versions = client.get("/a1/workspaces/default/versions").json()["versions"]
        assert [version["version"] for version in versions] == [2, 1]
        assert client.get("/a1/workspaces/default/file", params={"path": "infra/main.tf"}).text == "# Main\n"
        done = parse_events(self._ask(client, "What did you change?", "m-2"))[-1]
        assert self.session.endswith(done["session_id"])

    def _ask(self, client: httpx.Client, text: str, message_id: str = "m-1") -> str:
        body = {"message_id": message_id, "session_id": "infra", "messages": [{"role": "user", "content": text}]}
        return client.post(self.CHAT, json=body).raise_for_status().text

    def _tell(self, client: httpx.Client) -> list[object]:
        paths = [self.approval, self.session, f"{self.session}/messages"]
        paths += [f"/a1/workspaces/default{what}" for what in ("", "/versions", "/tree", "/diff")]
        return [client.get(path).raise_for_status().json() for path in paths]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that the next tests end and start, one after the other."""
    gateway = Gateway(tmp_path_factory.mktemp("life") / "home")
    gateway.start()
    yield gateway
    if gateway.process is not None and gateway.process.poll() is None:
        gateway.stop(signal.SIGTERM)


def test_data_and_work_survive_ctrl_c_pressed_often_without_new_embeddings(life: Gateway) -> None:
    with life.client() as client:
        client.post("/a1/rag/indices/berlin/documents", json={"documents": BERLIN}).raise_for_status()
        session = client.post(SESSIONS, json={}).raise_for_status().json()
        messages = f"{SESSIONS}/{session['id']}/messages"
        client.post(messages, json={"message": "Mein Lieblingssport ist Tennis."}).raise_for_status()
        written = client.get("/a1/rag/indices/berlin/documents").json()["documents"]
        work = Work(client)
        upload_id, _ = put(client, "large", "large.jsonl", _large(LARGE))
        before = upload(client, "large", upload_id, lambda state: bool(state["bytes_done"]))
        assert before["status"] == "running"
    vectors, children = _vectors(life.home, "berlin"), _children(life.pid)
    assert vectors
    assert len(children) == 2  # the AWS emulator and the stand-in model
    stopping = time.monotonic()
    for _ in range(20):
        os.kill(life.pid, signal.SIGINT)
        time.sleep(0.02)
    assert life.stop() == 0
    assert time.monotonic() - stopping < STOP_SECONDS
    assert "Traceback" not in life.output
    assert not [pid for pid in children if _is_running(pid)]

    life.start()
    assert "killed" not in life.output
    with life.client() as client:
        assert client.get("/a1/rag/indices/berlin/documents").json()["documents"] == written
        assert _vectors(life.home, "berlin") == vectors
        hits = client.post("/a1/rag/indices/berlin/query", json={"query": "Wo ist der größte Park?", "top_k": 1}).json()
        assert (hits["results"][0]["id"], hits["version"]) == ("park", 1)
        answer = client.post(messages, json={"message": "Welcher Sport ist mein Liebling?"}).json()
        assert "Tennis" in answer["message"]["content"]
        assert [message["seq"] for message in client.get(messages).json()["messages"]] == [1, 2, 3, 4]
        work.check_and_continue(client)
        after = upload(client, "large", upload_id, has_ended)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", LARGE)
        assert after["bytes_done"] == after["bytes_total"]
        assert sorted(documents(client, "large")) == sorted(f"d{number}" for number in range(LARGE))
        assert client.get("/a1/rag/indices/large").json()["doc_count"] == LARGE
    assert "worker_failed" not in life.output


def test_data_and_an_ingestion_survive_a_kill(life: Gateway) -> None:
    content = "".join(json.dumps({"id": f"d{n}", "text": f"Dokument {n}", "metadata": {}}) + "\n" for n in range(SMALL)).encode()
    with life.client(user="kept") as client:
        client.post(SESSIONS, json={"title": "kept"}).raise_for_status()
        upload_id, _ = put(client, "small", "small.jsonl", content)
        upload(client, "small", upload_id, lambda state: bool(state["bytes_done"]))
    children = _children(life.pid)
    life.stop(signal.SIGKILL)

    life.start()  # waits until the child processes of the killed one have exited
    assert not [pid for pid in children if _is_running(pid)]
    with life.client(user="kept") as client:
        assert [session["title"] for session in client.get(SESSIONS).json()["sessions"]] == ["kept"]
        after = upload(client, "small", upload_id, has_ended)
        assert (after["status"], after["documents_ingested"]) == ("succeeded", SMALL)
        assert client.get("/a1/rag/indices/small").json()["doc_count"] == SMALL


def test_the_gateway_names_the_commit_of_its_checkout(gateway: Gateway) -> None:
    with gateway.client() as client:
        assert client.get("/healthz").json() == {"status": "ok", "release": read_commit(ROOT)}


def test_sigterm_returns_to_the_shell_and_leaves_no_process(life: Gateway) -> None:
    children = _children(life.pid)
    assert life.stop(signal.SIGTERM) == 0
    assert not [pid for pid in children if _is_running(pid)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only /proc tells which signals a process catches")
def test_ctrl_c_while_modules_are_loaded_ends_the_process_without_output(tmp_path: Path) -> None:
    process = _start({"PORT": str(free_port()), "SPASS_HOME": str(tmp_path / "home")})
    while not _has_handler(process.pid, signal.SIGTERM):  # the interpreter itself handles only SIGINT
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=START_SECONDS)
    assert (process.returncode, output) == (130, "")


def test_ctrl_c_during_the_start_is_a_clean_stop_for_the_next_start(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "home")
    process = _start({"PORT": str(gateway.port), "SPASS_HOME": str(gateway.home)})
    log = gateway.home / "logs" / "ministack.log"
    while not log.exists():  # from now on there are child processes
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=START_SECONDS)
    assert (process.returncode, output) == (0, "\nStopped; the state is kept.\n")

    gateway.start()
    gateway.stop()
    assert "Spass serves on" in gateway.output
    assert "killed" not in gateway.output


def test_an_invalid_provider_key_stops_the_start(tmp_path: Path) -> None:
    result = _run({"PORT": str(free_port()), "SPASS_HOME": str(tmp_path / "home"), "ANTHROPIC_API_KEY": "sk-ant-…"})
    assert result.returncode == 1
    assert "ANTHROPIC_API_KEY" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_start_fails_with_a_clear_message_if_the_port_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = _run({"PORT": str(port), "SPASS_HOME": str(tmp_path / "home")})
    assert result.returncode == 1
    assert f"Port {port} cannot be used" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("same_port", [True, False])
def test_a_second_gateway_in_the_same_home_is_refused(gateway: Gateway, same_port: bool) -> None:
    port = gateway.url.rpartition(":")[2] if same_port else str(free_port())
    result = _run({"PORT": "0", "SPASS_HOME": str(gateway.home)}, "--port", port)
    assert result.returncode == 1
    assert "already runs with its state in" in result.stderr


def test_a_mistake_in_gateway_yaml_stops_the_start_with_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("llm:\n  retrys: 3\n")
    result = _run({"PORT": str(free_port()), "SPASS_HOME": str(tmp_path / "home"), "SPASS_CONFIG": str(config)})
    assert result.returncode == 1
    assert result.stderr.startswith(f"{config}:2: ")
    assert "Traceback" not in result.stderr


def test_a_mistake_in_an_agent_stops_the_start_with_file_and_line(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "mine.yaml").write_text("name: mine\nmodel: no-such-model\nsystem_prompt: Hello\n")
    result = _run({"PORT": str(free_port()), "SPASS_HOME": str(tmp_path / "home"), "SPASS_AGENTS": str(agents)})
    assert result.returncode == 1
    assert f"{agents}/mine.yaml:2: " in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "home" / "aws").glob("*.tmp"))  # the emulator had time to stop


def _run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "local", *arguments],
        cwd=ROOT,
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def _start(environment: dict[str, str]) -> "subprocess.Popen[str]":
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


def _has_handler(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _vectors(home: Path, index: str) -> dict[str, int]:
    """Return the files with the vectors of an index, and when each was written."""
    return {str(file): file.stat().st_mtime_ns for file in (home / "s3").rglob("*.npy") if f"/{index}/" in str(file)}


def _children(pid: int) -> list[int]:
    return [int(child) for child in subprocess.check_output(["pgrep", "-P", str(pid)], text=True).split()]


def _is_running(pid: int) -> bool:
    """Return whether the process still runs after 2 seconds. A zombie does not run."""
    for _ in range(20):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
        if not state or state.startswith("Z"):
            return False
        time.sleep(0.1)
    return True
