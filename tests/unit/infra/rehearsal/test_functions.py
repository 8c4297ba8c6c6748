"""Functions run as deployed: in their folders, which are read-only, and with their variables."""

import io
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.rehearsal import instances
from infra.rehearsal.functions import Host
from infra.rehearsal.instances import FunctionFailed

HANDLER = """
import os, sys, time
import packaged

def handler(event, context):
    if event == "fail":
        raise ValueError("no")
    if event == "fault":
        raise sys.modules["awslambdaric.lambda_runtime_exception"].FaultException("Chosen", "text", None)
    if event == "sleep":
        time.sleep(60)
    if event == "exit":
        os._exit(1)
    if event == "write":
        open(os.path.join(os.environ["LAMBDA_TASK_ROOT"], "new"), "w")
    print("to the log")
    return {
        "file": __file__, "package": packaged.__file__, "variable": os.environ["OURS"],
        "config": open(os.environ["CONFIG"]).read(),
        "path": os.environ.get("PYTHONPATH"), "process": os.getpid(), "name": context.function_name,
        "left": context.get_remaining_time_in_millis(),
    }
"""
COUNTING = """
import itertools, threading, time

counted = 0

def count():
    global counted
    while True:
        counted += 1
        time.sleep(0.001)

threading.Thread(target=count, daemon=True).start()

def handler(event, context):
    return counted
"""
START = """\
#!/bin/bash
exec python3 -c '
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-Path", self.path)
        self.end_headers()
        for piece in (text, b"second"):
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\\r\\n\\r\\n")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["AWS_LWA_PORT"])), Handler).serve_forever()
'
"""


def packed(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        for name, text in files.items():
            writer.writestr(name, text)
    return archive.getvalue()


LAYER = packed({"python/packaged.py": "", "config/gateway.yaml": "tenants"})


@pytest.fixture(params=[*(["mounted"] if instances.can_mount() else []), "under a prefix"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    if request.param == "under a prefix":
        monkeypatch.setattr(instances, "can_mount", lambda: False)
    for name in ("unpacked", "logs"):
        (tmp_path / name).mkdir()
    started = Host(
        folder=tmp_path, python=Path(sys.executable).resolve(), environment=lambda _: {"OURS": "emulator"}, layer=lambda _: LAYER
    )
    yield started
    started.end()


def record(files: dict[str, str], handler: str = "code.handler", **changes: Any) -> dict[str, Any]:
    """Return the emulator's record of a function."""
    config = {
        "FunctionName": "it",
        "FunctionArn": "arn:it",
        "Handler": handler,
        "MemorySize": 512,
        "Timeout": 20,
        "Layers": ["arn:layer"],
        "Environment": {"Variables": {"CONFIG": "/opt/config/gateway.yaml"}},
    }
    return {"config": config | changes, "code_zip": packed(files)}


def test_a_function_has_its_code_layers_and_variables(host: Host) -> None:
    answered = host.execute(record({"code.py": HANDLER}), {}, "r-1")
    answer = answered["body"]
    assert answer["file"].endswith("/var/task/code.py")
    assert answer["package"].endswith("/opt/python/packaged.py")
    assert (answer["variable"], answer["config"], answer["path"], answer["name"]) == ("emulator", "tenants", None, "it")
    assert 0 < answer["left"] <= 20_000
    assert "to the log" in answered["log"]


def test_an_instance_answers_again_until_the_function_changes(host: Host) -> None:
    old, new = record({"code.py": HANDLER}), record({"code.py": f"{HANDLER}\n"})
    processes = [host.execute(one, {}, "r")["body"]["process"] for one in (old, old, new)]
    assert processes[0] == processes[1] != processes[2]


@pytest.mark.parametrize(
    ("event", "kind"), [("fail", "ValueError"), ("fault", "Chosen"), ("exit", "Runtime.ExitError"), ("sleep", "Sandbox.Timedout")]
)
def test_a_failure_has_its_type_and_the_next_invocation_works(host: Host, event: str, kind: str) -> None:
    function = record({"code.py": HANDLER}, Timeout=1)
    failed = host.execute(function, event, "r-1")
    assert (failed["error"], failed["body"]["errorType"]) == (True, kind)
    assert host.execute(function, {}, "r-2")["body"]["name"] == "it"


def test_a_function_under_a_prefix_can_write_into_its_code(host: Host) -> None:
    answer = host.execute(record({"code.py": HANDLER}), "write", "r-1")["body"]
    assert ("errorType" in answer) is instances.can_mount()


def test_an_idle_instance_is_not_frozen(host: Host) -> None:
    function = record({"code.py": COUNTING})
    first = host.execute(function, {}, "r-1")["body"]
    time.sleep(0.05)
    assert host.execute(function, {}, "r-2")["body"] > first


def test_a_function_gets_more_memory_than_it_has(host: Host) -> None:
    code = "def handler(event, context):\n    return len(bytes(2**28))\n"
    assert host.execute(record({"code.py": code}, MemorySize=128), {}, "r-1")["body"] == 2**28


def request_of(body: str) -> dict[str, Any]:
    return {
        "httpMethod": "POST",
        "path": "/a b",
        "multiValueQueryStringParameters": {"q": ["1", "2"]},
        "multiValueHeaders": {"Content-Type": ["text/plain"]},
        "requestContext": {},
        "body": body,
        "isBase64Encoded": False,
    }


def test_a_streaming_function_sends_each_piece_at_once(host: Host) -> None:
    streamed = host.stream(record({"run.sh": START}, "run.sh"), request_of("first"))
    assert (streamed.status, streamed.headers["X-Path"]) == (201, ["/a%20b?q=1&q=2"])
    assert [*streamed.pieces] == [b"first", b"second"]


def test_a_streaming_function_that_does_not_start_says_why(host: Host) -> None:
    with pytest.raises(FunctionFailed, match="broken") as failed:
        host.stream(record({"run.sh": "echo broken; exit 1"}, "run.sh"), request_of(""))
    assert failed.value.kind == "Runtime.ExitError"
