"""The JavaScript and Python examples of ``docs/streaming.md`` survive broken connections and a lost turn."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from local.home import ROOT
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from tests.e2e.conftest import Gateway
from tests.e2e.cutting_proxy import cutting_proxy

COMMANDS = {"js": ["node", "--input-type=module", "--eval"], "python": [sys.executable, "-c"]}
LANGUAGES = pytest.mark.parametrize("language", COMMANDS)


def run_example(language: str, url: str, folder: Path) -> str:
    """Run the only example in ``language`` with another address, and return its output."""
    (code,) = re.findall(rf"(?s)```{language}\n(.*?)```", (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8"))
    assert "http://127.0.0.1:3000" in code
    command = [*COMMANDS[language], code.replace("http://127.0.0.1:3000", url)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@LANGUAGES
def test_an_example_reads_the_whole_answer_over_broken_connections(gateway: Gateway, tmp_path: Path, language: str) -> None:
    with cutting_proxy(gateway.port, 900, 700) as proxy:
        output = run_example(language, proxy.url, tmp_path)
    assert output.split() == [str(number) for number in range(1, 21)]
    assert [head.split()[0] for head in proxy.heads] == ["POST", "GET", "GET"]
    ids = [int(number) for head in proxy.heads for number in re.findall(r"(?i)last-event-id: 1-(\d+)", head)]
    assert ids == sorted(set(ids))
    assert len(ids) == 2


@LANGUAGES
def test_an_example_starts_another_attempt_when_the_turn_is_lost(tmp_path: Path, language: str) -> None:
    lost = {"type": "error", "error": {"code": "turn_lost", "message": "Lost."}, "request_id": "req_1"}
    first = [planning(1), token("1 2 "), lost]
    second = [planning(2), token("1 "), token("2 "), token("3"), {"type": "done"}]
    with scripted_server([first, second]) as (url, bodies):
        assert run_example(language, url, tmp_path).strip() == "1 2 3"
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


@LANGUAGES
def test_an_example_fails_when_the_model_fails(tmp_path: Path, language: str) -> None:
    failed = {"type": "error", "error": {"code": "upstream_error", "message": "The model is away."}, "request_id": "req_1"}
    with scripted_server([[planning(1), failed]]) as (url, bodies), pytest.raises(AssertionError, match="The model is away"):
        run_example(language, url, tmp_path)
    assert len(bodies) == 1


def planning(attempt: int) -> dict[str, Any]:
    return {"type": "status_update", "status": "planning", "attempt": attempt, "session_id": f"ses_{uuid4()}"}


def token(text: str) -> dict[str, Any]:
    return {"type": "token", "content": text, "step": 1}


@contextmanager
def scripted_server(streams: list[list[dict[str, Any]]]) -> Iterator[tuple[str, list[object]]]:
    """Answer each POST with the next stream. Yield the server's URL and the list of the bodies that arrive."""
    bodies: list[object] = []

    def pieces(attempt: int) -> Iterator[bytes]:
        yield b"retry: 1000\n\n: keep-alive\n\n"
        for number, event in enumerate(streams[attempt - 1], 1):
            event_id = f"id: {attempt}-{number}\n" if event["type"] != "error" else ""
            yield f"{event_id}data: {json.dumps(event)}\n\n".encode()

    def respond(request: HttpRequest) -> HttpAnswer:
        bodies.append(request.json)
        return HttpAnswer(pieces(len(bodies)), content_type="text/event-stream")

    with serve(respond) as url:
        yield url, bodies
