"""The start of a Lambda function, and the log of its failures."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from spass.core.messages import Json
from spass.redaction.log import capture_library_logs, failure_line, write_line
from spass.web.services import Services

WarmUp: TypeAlias = Callable[[Services], object]
"""A function that creates the services of a route during the start. Lambda gives a starting function a full CPU, and requests
do not wait."""


class FunctionFailed(Exception):
    """A function failed. The message of this error is the type of the original error; the log has the reason."""


def in_lambda() -> bool:
    """Return True in a process of AWS Lambda."""
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ


@contextmanager
def log_startup_failure() -> Iterator[None]:
    """Start a function in Lambda: capture the logs of libraries, and log a failure as one line. Raise SystemExit if the start
    failed. Lambda would print any other exception with its text and trace, which may hold secrets."""
    capture_library_logs()
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the edge: the runtime prints what is raised further)
        write_line({**failure_line(error, ""), "event": "start_failed", **_describe_problems(error)})
        raise SystemExit(1) from None


@contextmanager
def log_failure() -> Iterator[None]:
    """Run a function. In Lambda, log a failure as one line, and raise an exception that holds only the type of the error."""
    try:
        yield
    except Exception as error:
        if not in_lambda():
            raise
        write_line({**failure_line(error, ""), "event": "function_failed"})
        raise _build_fault(type(error).__name__) from None


def _build_fault(kind: str) -> Exception:
    """Return the exception that fails an invocation with the error type ``kind``. The runtime logs the trace of every exception
    except its ``FaultException`` (https://github.com/aws/aws-lambda-python-runtime-interface-client, bootstrap.py).
    """
    runtime = sys.modules.get("awslambdaric.lambda_runtime_exception")
    if runtime is None:
        return FunctionFailed(kind)
    fault: Exception = runtime.FaultException(kind, str(FunctionFailed.__doc__), None)
    return fault


def _describe_problems(error: Exception) -> dict[str, Json]:
    """Return the problems of an operator's file: its name, the line and the message. Of another error return its text and its
    error number: a start has no texts of users yet, so nothing but secrets and paths must be redacted."""
    from spass.redaction.text import redact_provider_text
    from spass.tenancy.config_problem import ConfigProblem
    from spass.tenancy.yaml_source import ConfigError

    if not isinstance(error, ConfigError):
        causes = [error, *filter(None, [error.__cause__])]
        numbers = [cause.errno for cause in causes if isinstance(cause, OSError)]
        texts = [redact_provider_text(str(cause)) for cause in causes]
        return {"message": ": ".join(texts), "errno": next(iter(numbers), None)}
    return {
        "problems": [
            {"file": problem.file, "line": problem.line, "problem": redact_provider_text(problem.message)}
            for problem in map(ConfigProblem.without_folder, error.problems)
        ]
    }
