"""The start of a Lambda function, the log of its failures, and the handler of a worker, which a queue, a state machine or a
schedule invokes."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, TypeAlias

from mangum.types import LambdaContext

from spass.core.messages import Json
from spass.core.time import Deadline
from spass.redaction.log import capture_library_logs, failure_line, write_line
from spass.web.services import Services

WarmUp: TypeAlias = Callable[[Services], object]
"""A function that creates the services of a route during the start. Lambda gives a starting function a full CPU, and requests
do not wait."""
_SHUTDOWN_SECONDS: Final = 30.0  # between the deadline of the work and the end of the invocation, for an orderly shutdown

EventHandler: TypeAlias = Callable[[Services, Mapping[str, Any], Deadline], Awaitable[Json]]
"""Handle one event until the deadline, and return the answer to the invoker."""


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
    """Return the problems of an operator's file: its name, the line and the message. Of another error return its text, its
    error number and the name of that, such as ``ENOSPC``: a start has no texts of users yet, so nothing but secrets and paths
    must be redacted."""
    from spass.redaction.text import redact_provider_text
    from spass.tenancy.config_problem import ConfigProblem
    from spass.tenancy.yaml_source import ConfigError

    if not isinstance(error, ConfigError):
        causes = [error, *filter(None, [error.__cause__])]
        numbers = [cause.errno for cause in causes if isinstance(cause, OSError)]
        texts = [redact_provider_text(str(cause)) for cause in causes]
        number = next(iter(numbers), None)
        return {"message": ": ".join(texts), "errno": number, "errno_name": errno.errorcode.get(number) if number else None}
    return {
        "problems": [
            {"file": problem.file, "line": problem.line, "problem": redact_provider_text(problem.message)}
            for problem in map(ConfigProblem.without_folder, error.problems)
        ]
    }


def prepare_tracer(services: Services) -> None:
    """Read and import now, instead of at the first request, what the exporter of spans needs, if there is one."""
    if services.tracer is not None:
        services.tracer.exporter.prepare()


def worker_handler(work: EventHandler, services: Services | None = None, *, warm_up: WarmUp | None = None) -> "WorkerFunction":
    """Return the Lambda handler of a worker."""
    return WorkerFunction(work, services, warm_up)


class WorkerFunction:
    """A handler that runs one event at a time, always in the same event loop: the services' open connections belong to it."""

    def __init__(self, work: EventHandler, services: Services | None, warm_up: WarmUp | None) -> None:
        self.work = work  # public for the laptop, which has a loop and services of its own
        self._configured_services = services
        self._lock = threading.Lock()
        if in_lambda():
            with log_startup_failure():
                self.services.aws.connect()
                prepare_tracer(self.services)
                if warm_up is not None:
                    warm_up(self.services)

    @cached_property
    def services(self) -> Services:
        return self._configured_services or Services()

    @cached_property
    def _runner(self) -> asyncio.Runner:
        return asyncio.Runner()

    def __call__(self, event: Mapping[str, Any], context: LambdaContext) -> Json:
        with self._lock, log_failure():
            seconds = context.get_remaining_time_in_millis() / 1000 - _SHUTDOWN_SECONDS
            return self._runner.run(self._handle(event, Deadline.after(seconds)))

    def close(self) -> None:
        """Close open connections, in a process that outlives its workers."""
        with self._lock:
            if "_runner" in self.__dict__:
                self._runner.run(self.services.aclose())
                self._runner.close()
                del self._runner

    async def _handle(self, event: Mapping[str, Any], deadline: Deadline) -> Json:
        return await self.work(self.services, event, deadline)
