"""A function that fails in Lambda does not print the text of the error, a path or a trace."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter

from spass.core.errors import StorageUnavailable
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.http_function import lambda_handler
from spass.web.services import Services
from spass.web.startup import FunctionFailed, WorkerFunction, worker_handler
from tests.functions.gateway import CONFIG, write_operators_files
from tests.unit.calls.planted_secrets import BY_FORMAT, SECRETS, leaked_kinds

ROOT = Path(__file__).parents[2]
WORDS = " ".join(SECRETS.values()) + " /var/task/app.py"
CONTEXT: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000)


class Fault(Exception):
    """The runtime's ``FaultException`` (awslambdaric/lambda_runtime_exception.py)."""

    def __init__(self, exception_type: str, msg: str, trace: list[str] | None = None) -> None:
        self.exception_type, self.msg, self.trace = exception_type, msg, trace or []


@pytest.fixture
def failing_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerFunction]:
    """A worker in Lambda that fails."""

    async def work(_: Services, event: Mapping[str, Any], __: Deadline) -> Json:
        if event.get("kind") == "storage":
            raise StorageUnavailable(WORDS)
        raise KeyError(WORDS) from ValueError(WORDS)

    handler = worker_handler(work)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "ingest-step")
    yield handler
    handler.close()


def read_log_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not leaked_kinds(captured.out, SECRETS)
    assert "/var" not in captured.out
    line: dict[str, Any] = json.loads(captured.out)
    return line


@pytest.mark.parametrize(("event", "kind"), [({}, "KeyError"), ({"kind": "storage"}, "StorageUnavailable")])
def test_the_runtime_gets_only_the_type_of_the_error(
    failing_worker: WorkerFunction,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    event: dict[str, str],
    kind: str,
) -> None:
    runtime = ModuleType("awslambdaric.lambda_runtime_exception")
    monkeypatch.setattr(runtime, "FaultException", Fault, raising=False)
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    for _ in range(2):
        with pytest.raises(Fault) as raised:
            failing_worker(event, CONTEXT)
        assert (raised.value.exception_type, raised.value.trace) == (kind, [])
        assert not leaked_kinds(raised.value.msg, SECRETS)
        line = read_log_line(capsys)
        assert (line["event"], line["level"], line["exception"]) == ("function_failed", "error", kind)
        assert line["where"].startswith("spass.web.startup:")


def test_a_runtime_without_fault_exceptions_gets_only_the_type(
    failing_worker: WorkerFunction, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FunctionFailed, match=r"^KeyError$") as raised:
        failing_worker({}, CONTEXT)
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None
    assert read_log_line(capsys)["exception"] == "KeyError"


@pytest.fixture
def loop() -> Iterator[None]:
    """An event loop, so that Mangum does not create one."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("loop")
def test_an_event_of_another_service_is_a_function_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = lambda_handler(APIRouter())
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "meta-health")
    with pytest.raises(FunctionFailed):
        handler({"words": WORDS}, CONTEXT)
    assert read_log_line(capsys)["event"] == "function_failed"


def start_function(folder: Path, module: str, config: str) -> "subprocess.CompletedProcess[str]":
    settings = write_operators_files(folder)
    settings.config.write_text(config)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}",
        "AWS_LAMBDA_FUNCTION_NAME": "chat-completions",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SPASS_CONFIG": str(settings.config),
        "SPASS_AGENTS": str(settings.agents),
    }
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True)


@pytest.mark.parametrize("module", ["functions.chat.completions", "functions.models.list"])
def test_a_failed_start_logs_the_problems_of_the_file_in_one_line(tmp_path: Path, module: str) -> None:
    secrets = {kind: secret for kind, secret in BY_FORMAT.items() if len(secret) < 100}
    bad_lines = "".join(f"  {json.dumps(secret)}: {json.dumps(secret)}\n" for secret in secrets.values())
    process = start_function(tmp_path, module, CONFIG.replace("llm:\n", f"llm:\n{bad_lines}"))
    assert process.returncode == 1
    assert process.stderr == ""
    (line,) = map(json.loads, process.stdout.splitlines())
    assert (line["event"], line["exception"]) == ("start_failed", "ConfigError")
    assert {problem["line"] for problem in line["problems"]} >= {3, 4, 5}
    assert {problem["file"] for problem in line["problems"]} == {"gateway.yaml"}
    assert not leaked_kinds(process.stdout, secrets)
    assert str(tmp_path) not in process.stdout


@pytest.mark.parametrize(
    ("failure", "kind", "number", "name", "words"),
    [
        ("OSError(28, 'No space left on device', '/var/task/secret.db')", "OSError", 28, "ENOSPC", "No space left on device"),
        ("OSError(7777, 'Nobody knows', '/var/task/secret.db')", "OSError", 7777, None, "Nobody knows"),
        ("ModuleNotFoundError('No module named numpy')", "ModuleNotFoundError", None, None, "No module named numpy"),
    ],
)
def test_a_failed_start_logs_what_failed_with_the_number_and_name_of_its_error(
    failure: str, kind: str, number: int | None, name: str | None, words: str
) -> None:
    secrets = {kind: secret for kind, secret in BY_FORMAT.items() if len(secret) < 100}
    program = (
        "from spass.web.startup import log_startup_failure\n"
        f"with log_startup_failure():\n    error = {failure}\n    raise error from ValueError({' '.join(secrets.values())!r})\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "shared")}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False, text=True)
    assert (process.returncode, process.stderr) == (1, "")
    line = json.loads(process.stdout)
    assert (line["event"], line["exception"], line["errno"], line["errno_name"]) == ("start_failed", kind, number, name)
    assert words in line["message"]
    assert not leaked_kinds(process.stdout, secrets)
    assert "/var" not in process.stdout
