"""A model provider in a mood: it answers by the script of ``scripted_upstream``, and fails as a test wants it to.

The model ``condenser`` writes summaries. Of all others, the next answers may be that the prompt is too long.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.e2e.scripted_upstream import reply

CONDENSER: Final = "condenser"
SUMMARY: Final = "Marty moves to Berlin on 3 May and pays 1200 Euro."
_HANGS_SECONDS: Final = 4.0

TOO_LONG: Final = {
    "error": {
        "message": "This model's maximum context length is 500 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
SAID: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "fine": ({"content": SUMMARY}, "stop"),
    "empty": ({"content": ""}, "stop"),
    "blank": ({"content": " \n\t "}, "stop"),
    "a tool call": ({"tool_calls": [_CALL]}, "tool_calls"),
    "a refusal": ({"refusal": "I cannot help with that."}, "stop"),
    "filtered": ({"content": "Marty moves"}, "content_filter"),
    "cut off": ({"content": "Marty moves to"}, "length"),
}
"""What the condenser may say, and how it ends."""
BROKEN: Final = ("status 500", "status 401", "status 400", "garbage", "an empty stream", "an error in a 200", "gone", "slow")
"""What may go wrong with its answer."""


@dataclass
class Moods:
    """What the upstream does next, and what it was asked."""

    summary: str = "fine"
    too_long: int = 0
    delay: float = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [asked for asked in self.asked if asked["model"] == CONDENSER]


@contextmanager
def moody_upstream(moods: Moods) -> Iterator[str]:
    """Serves until the block ends; gives the base URL."""

    class Handler(_Handler):
        moods_of_all = moods

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    moods_of_all: Moods

    def do_GET(self) -> None:
        self._send(200, b"{}")

    def do_POST(self) -> None:
        moods = self.moods_of_all
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        moods.asked.append(asked)
        with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have gone
            if asked["model"] == CONDENSER:
                time.sleep(moods.delay)
                self._condense(asked, moods.summary)
            elif moods.too_long:
                moods.too_long -= 1
                self._send(400, json.dumps(TOO_LONG).encode())
            else:
                said = reply(asked)
                self._say(asked, said, "tool_calls" if "tool_calls" in said else "stop")

    def _condense(self, asked: dict[str, Any], mood: str) -> None:
        if said := SAID.get(mood):
            self._say(asked, *said)
            return
        match mood:
            case "status 500":
                self._send(500, b'{"error": {"message": "Internal error."}}')
            case "status 401":
                self._send(401, b'{"error": {"message": "Incorrect API key provided: sk-secret."}}')
            case "status 400":
                self._send(400, b'{"error": {"message": "Unsupported parameter.", "code": "unsupported_parameter"}}')
            case "garbage":
                self._send(200, b"<html>It works!</html>", "text/html")
            case "an empty stream":
                self._stream()
            case "an error in a 200":
                self._stream({"error": {"message": "Overloaded.", "code": 500}})
            case "gone":
                self.close_connection = True
            case "slow":
                time.sleep(_HANGS_SECONDS)
                self.close_connection = True
            case _:
                raise LookupError(mood)

    def _say(self, asked: dict[str, Any], message: dict[str, Any], finish: str) -> None:
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        if asked.get("stream"):
            calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
            delta = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
            self._stream(
                {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
                {"choices": [], "usage": usage},
            )
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked["model"], "choices": [choice]}
        self._send(200, json.dumps({**whole, "usage": usage}).encode())

    def _stream(self, *events: object) -> None:
        lines = [b"data: " + json.dumps(event).encode() for event in events]
        self._send(200, b"\n\n".join([*lines, b"data: [DONE]\n\n"]), "text/event-stream")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class says so)
        """Says nothing."""

    def _send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
