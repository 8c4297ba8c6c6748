"""Test the lines of the log: the fields of a failure, redaction, and a closed output."""

import asyncio
import gc
import io
import json
import logging
import sys
import threading
import time
import warnings
from typing import Any

import pytest

from spass.redaction import text as redaction
from spass.redaction.log import capture_library_logs, failure_line, write_line
from tests.unit.calls.planted_secrets import BY_FORMAT, BY_VALUE, SECRETS, leaked_kinds, set_credentials

TEXT_WITH_SECRETS = " ".join(SECRETS.values()) + " /var/task/app.py arn:aws:s3:::private-bucket https://models.internal/x"


class ClosedOutput(io.StringIO):
    """The output of a closed terminal."""

    def write(self, _: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.fixture
def library_logs() -> None:
    gc.collect()  # collect the garbage of other tests first, because its finalizers may log
    capture_library_logs()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the lines of the log. Check that they contain no secret and no path."""
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not leaked_kinds(captured.out, SECRETS)
    for place in ("/var/task", "private-bucket", "models.internal", "Traceback", ".py"):
        assert place not in captured.out
    return [json.loads(line) for line in captured.out.splitlines()]


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    write_line({"event": "swept", "text": "two\nlines"})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"event": "swept", "text": "two\nlines"}


def test_work_continues_when_the_log_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", ClosedOutput())
    write_line({"event": "swept"})


@pytest.mark.parametrize("kind", BY_FORMAT)
def test_a_credential_anywhere_in_a_line_is_redacted(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    secret = BY_FORMAT[kind]
    write_line({"event": "call", "user": secret, "deep": [{"x": f"a {secret} b"}], secret: 1})
    (line,) = lines(capsys)
    assert line["event"] == "call"
    assert "[…]" in line["user"]


def test_credentials_of_the_process_and_names_of_resources_are_redacted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch)
    monkeypatch.setenv("SPASS_TABLE", "stack-Table-1ABC")
    monkeypatch.setenv("SPASS_BUCKET", "stack-bucket-2def")
    redaction.reload_environment()
    write_line({"a": "stack-Table-1ABC is throttled", "b": ["s3 stack-bucket-2def"], "c": BY_VALUE["process secret key"]})
    monkeypatch.undo()
    redaction.reload_environment()
    assert lines(capsys) == [{"a": "[…] is throttled", "b": ["s3 […]"], "c": "[…]"}]


@pytest.mark.parametrize(
    "text",
    [
        "arn:aws:dynamodb:eu-central-1:123456789012:table/x",
        "https://models.internal:8443/v1?key=1",
        "dynamodb.eu-central-1.amazonaws.com",
        "/var/task/shared/app.py",
        "/opt/config/gateway.yaml",
        "/home/ada/.env",
        "C:\\Users\\ada\\x",
        "postgres://ada:s3cr3t@db/x",
    ],
)
def test_a_path_or_address_in_a_text_is_redacted(text: str) -> None:
    assert redaction.redact(f"It failed at {text} today") == "It failed at […] today"


@pytest.mark.parametrize("piece", ["a.", "a-b/", "/", "PRIVATE KEY "])
def test_the_time_to_redact_a_text_is_linear_in_its_length(piece: str) -> None:
    started = time.process_time()
    redaction.redact("://" + piece * 50_000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "/a1/agents/{name}/sessions",
        "GET /docs lists them; 9000/8192 tokens, and/or 1/2",
        "req_01m7wt70mxy3hx4xvfhts07dkp 2026-11-20T15:46:45.021Z",
        "gateway.yaml:12: llm.backends.0.timeout: must be above 0",
        "spass.web.exchange:__call__:48 meta-llama/llama-4-scout documents.3.text",
    ],
)
def test_useful_text_is_not_redacted(text: str) -> None:
    assert redaction.redact(text) == text


def test_the_line_of_an_exception_has_its_type_cause_and_place() -> None:
    try:
        try:
            raise KeyError(TEXT_WITH_SECRETS)
        except KeyError as cause:
            raise ValueError(TEXT_WITH_SECRETS) from cause
    except ValueError as error:
        line = failure_line(error, "req_1")
    assert line | {"at": ""} == {
        "at": "",
        "level": "error",
        "request_id": "req_1",
        "exception": "ValueError",
        "cause": "KeyError",
        "where": None,
    }


@pytest.mark.usefixtures("library_logs")
@pytest.mark.parametrize("name", ["uvicorn.error", "botocore.endpoint", "httpx", "asyncio", "anything"])
def test_a_record_of_a_library_is_logged_without_its_text(capsys: pytest.CaptureFixture[str], name: str) -> None:
    logger = logging.getLogger(name)
    logger.warning("it broke: %s", TEXT_WITH_SECRETS)
    try:
        raise KeyError(TEXT_WITH_SECRETS)
    except KeyError:
        logger.exception(TEXT_WITH_SECRETS)
    logger.info(TEXT_WITH_SECRETS)
    logger.error("bad %d", "arguments")
    warning, failure, malformed = lines(capsys)
    assert (warning["event"], warning["logger"], warning["level"]) == ("library", name, "warning")
    assert (failure["level"], failure["exception"]) == ("error", "KeyError")
    assert malformed["level"] == "error"


@pytest.mark.usefixtures("library_logs")
def test_the_exception_of_a_task_that_is_not_awaited_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise LookupError(TEXT_WITH_SECRETS)

    async def forget_task() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(forget_task())
    (line,) = lines(capsys)
    assert (line["logger"], line["exception"]) == ("asyncio", "LookupError")


@pytest.mark.usefixtures("library_logs")
def test_warnings_and_failures_of_threads_and_finalizers_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise LookupError(TEXT_WITH_SECRETS)

    class Failing:
        def __del__(self) -> None:
            fail()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn(TEXT_WITH_SECRETS, stacklevel=1)
        logging.captureWarnings(False)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    unused = Failing()
    del unused
    gc.collect()
    warning, thread_failure, unraisable = lines(capsys)
    assert warning["logger"] == "py.warnings"
    assert (thread_failure["event"], thread_failure["exception"]) == ("thread_failed", "LookupError")
    assert (unraisable["event"], unraisable["exception"]) == ("unraisable", "LookupError")


@pytest.mark.usefixtures("library_logs")
def test_a_crash_of_the_process_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    error = LookupError(TEXT_WITH_SECRETS)
    sys.excepthook(LookupError, error, None)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    (line,) = lines(capsys)
    assert (line["event"], line["exception"]) == ("crashed", "LookupError")
