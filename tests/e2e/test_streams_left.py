"""A client leaves a stream of ``/v1/chat/completions``: on the laptop its server sees that, and the model is not read on."""

import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import pytest

from tests.e2e.conftest import Gateway

TOKEN: Final = "leaving-token"
SECONDS: Final = 20

CONFIG: Final = """
llm:
  backends:
    - {{name: endless, provider: openai, base_url: "{url}", supported_models: [endless]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: endless, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 1}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: endless}}
tenants:
  - id: leaving
    tokens: [{{id: leaving, sha256: {digest}}}]
"""


class EndlessUpstream(BaseHTTPRequestHandler):
    """A provider whose answer ends only when its reader leaves. It does not answer "Think." at all."""

    protocol_version = "HTTP/1.1"
    asked = threading.Event()
    left = threading.Event()

    def do_POST(self) -> None:
        thinks = b"Think." in self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.set()
        if thinks:
            self.connection.settimeout(SECONDS)
            with suppress(TimeoutError):
                if not self.rfile.read(1):
                    self.left.set()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "endless", "choices": [choice]}
        event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(SECONDS * 20):
                self.wfile.write(event)
                time.sleep(0.05)
            return
        self.left.set()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class says so)
        """Log nothing."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    tmp_path = tmp_path_factory.mktemp("streams")
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), EndlessUpstream)
    upstream.daemon_threads = True
    serving = threading.Thread(target=upstream.serve_forever, daemon=True)
    serving.start()
    url = f"http://127.0.0.1:{upstream.server_port}/v1"
    (tmp_path / "gateway.yaml").write_text(CONFIG.format(url=url, digest=hashlib.sha256(TOKEN.encode()).hexdigest()))
    (tmp_path / "agents").mkdir()
    paths = {"SPASS_CONFIG": str(tmp_path / "gateway.yaml"), "SPASS_AGENTS": str(tmp_path / "agents")}
    gateway = Gateway(tmp_path / "home", environment=paths)
    gateway.start()
    yield gateway
    gateway.stop()
    upstream.shutdown()
    serving.join()
    upstream.server_close()


@pytest.fixture(autouse=True)
def _events() -> None:
    EndlessUpstream.asked.clear()
    EndlessUpstream.left.clear()


def test_a_client_may_leave_before_the_first_word(gateway: Gateway) -> None:
    body = {"model": "endless", "messages": [{"role": "user", "content": "Think."}], "stream": True}
    with socket.create_connection(("127.0.0.1", httpx.URL(gateway.url).port or 0)) as client:
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(content)}"
        client.sendall(head.encode() + b"\r\n\r\n" + content)
        assert EndlessUpstream.asked.wait(SECONDS)
    assert EndlessUpstream.left.wait(SECONDS / 2), "the gateway still waits for the model's answer"


def test_the_model_is_not_read_on_and_the_audit_says_cancelled(gateway: Gateway) -> None:
    body = {"model": "endless", "messages": [{"role": "user", "content": "Count."}], "stream": True}
    with gateway.client(TOKEN) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            request_id = answer.headers["SPASS-Request-Id"]
            words = (line for line in answer.iter_lines() if '"content":"word ' in line)
            assert [next(words) for _ in range(3)]
        assert EndlessUpstream.left.wait(SECONDS), "the gateway still reads the model's answer"
        record = recorded(client, request_id)
    assert record["status"] == "cancelled"
    assert record["completion_tokens"] > 0
    assert float(record["cost_usd"]) > 0


def test_a_server_that_stops_ends_its_streams_with_an_error(gateway: Gateway) -> None:
    """The last test: it stops the gateway."""
    body = {"model": "endless", "messages": [{"role": "user", "content": "Count."}], "stream": True}
    with gateway.client(TOKEN) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines)
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGINT)
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert gateway.process.wait(SECONDS) == 0
    assert "CancelledError" not in gateway.output


def recorded(client: httpx.Client, request_id: str) -> dict[str, Any]:
    """The request's only call, once it is recorded."""
    until = time.monotonic() + SECONDS
    while (answer := client.get(f"/v1/audit/{request_id}")).status_code == 404 and time.monotonic() < until:
        time.sleep(0.1)
    (call,) = answer.json()["calls"]
    found: dict[str, Any] = call
    return found
