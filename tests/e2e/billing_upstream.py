"""A model provider that bills every request it has read, and then answers badly: never, in part, or with false counts.

A proxy in front of ``given-up`` ends the wait for it."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

ANSWER: Final = "This is an answer of forty characters.  "
PIECES: Final = 8
PIECE_SECONDS: Final = 0.25
"""A whole answer in pieces takes longer than the backend's ``timeout`` in ``test_attacks_money``, each piece less."""

USAGES: Final[dict[str, object]] = {
    "empty": {},
    "zeros": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "total-alone": {"total_tokens": 30},
    "no-completion": {"prompt_tokens": 20},
    "zero-cost": {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0},
    "negative": {"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12, "cost": -3},
    "absurd": {"prompt_tokens": 10**13, "completion_tokens": 10**15, "total_tokens": 10**16, "cost": 1e12},
    "no-numbers": {"prompt_tokens": "many", "completion_tokens": 1.5, "total_tokens": [], "cost": "NaN"},
    "no-object": "lots",
}
"""The usage that the model of that name claims."""


class BillingUpstream(ThreadingHTTPServer):
    """``billed`` counts the requests for each model that were read whole."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.billed: Counter[str] = Counter()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def billing_upstream() -> Iterator[BillingUpstream]:
    """Serve until the block ends."""
    upstream = BillingUpstream()
    thread = threading.Thread(target=upstream.serve_forever, daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        upstream.ended.set()
        upstream.shutdown()
        thread.join()
        upstream.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BillingUpstream

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.billed[asked["model"]] += 1
        try:
            self._answer(asked)
        except ConnectionError:  # the gateway has given it up
            self.close_connection = True

    def _answer(self, asked: dict[str, Any]) -> None:
        model = asked["model"]
        if model.startswith("hangs"):
            self.server.ended.wait(30)
            self.close_connection = True
        elif model == "given-up":
            self._head({"Content-Length": "0"}, status=504)
        elif model == "breaks-off":
            self._head({"Content-Length": "1000"})
            self.wfile.write(b'{"choices": [')
            self.close_connection = True
        elif asked.get("stream"):
            self._stream(model)
        else:
            time.sleep(PIECES * PIECE_SECONDS if model == "slow" else 0)
            choice = {"message": {"content": ANSWER}, "finish_reason": "stop"}
            self._send({"choices": [choice], "usage": USAGES.get(model)})

    def _stream(self, model: str) -> None:
        self._head({"Content-Type": "text/event-stream", "Connection": "close"})
        for _ in range(PIECES):
            time.sleep(PIECE_SECONDS if model == "slow" else 0)
            self._event({"choices": [{"delta": {"content": ANSWER}}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGES.get(model)})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, payload: object) -> None:
        self.wfile.write(b"data: " + json.dumps(payload).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, payload: object) -> None:
        body = json.dumps(payload).encode()
        self._head({"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class says so)
        """Say nothing."""
