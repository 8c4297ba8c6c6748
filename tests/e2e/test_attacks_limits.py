"""Attacks on the limits of a started gateway.

``tokens_per_minute`` binds calls that outlast the minute: that takes too long for a started gateway, so
``tests/unit/calls/test_admission.py`` and ``tests/unit/llm/test_router_limits.py`` show it in virtual time. Here a call of some
seconds shows from when on its tokens count.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import Gateway

CALL_SECONDS: Final = 12
CAP: Final = 1000
TOKEN: Final = "limits-token"

CONFIG: Final = """
llm:
  backends:
    - {{name: slow, provider: openai, base_url: "{url}", supported_models: [slow]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: slow, context_window: 100000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: slow}}
tenants:
  - id: limited
    defaults: {{tokens_per_minute: {cap}}}
    tokens: [{{id: limited, sha256: {digest}}}]
"""


class SlowUpstream(BaseHTTPRequestHandler):
    """A provider that takes its time, heeds no ``max_tokens`` and counts 33 times the cap."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(CALL_SECONDS)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2, "completion_tokens": 33 * CAP, "total_tokens": 33 * CAP + 2}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "slow", "choices": [choice]}
        body = json.dumps({**answer, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class says so)
        """Log nothing."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), SlowUpstream)
    serving = threading.Thread(target=upstream.serve_forever, daemon=True)
    serving.start()
    url = f"http://127.0.0.1:{upstream.server_port}/v1"
    (tmp_path / "gateway.yaml").write_text(CONFIG.format(url=url, cap=CAP, digest=hashlib.sha256(TOKEN.encode()).hexdigest()))
    (tmp_path / "agents").mkdir()
    paths = {"SPASS_CONFIG": str(tmp_path / "gateway.yaml"), "SPASS_AGENTS": str(tmp_path / "agents")}
    gateway = Gateway(tmp_path / "home", environment=paths)
    gateway.start()
    yield gateway
    gateway.stop()
    upstream.shutdown()
    serving.join()
    upstream.server_close()


def test_tokens_beyond_the_reservation_are_refused_for_a_minute_from_the_end_of_the_call(gateway: Gateway) -> None:
    body = {"model": "slow", "messages": [{"role": "user", "content": "Hi!?"}], "max_tokens": 20}
    with gateway.client(TOKEN) as client:
        admitted = client.post("/v1/chat/completions", json=body)
        refused = client.post("/v1/chat/completions", json=body)
    assert admitted.status_code == 200
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    # The bucket of the beginning leaves the window at most 66 s after it, and so at most 66 - 12 s from now.
    assert int(refused.headers["Retry-After"]) > 66 - CALL_SECONDS
