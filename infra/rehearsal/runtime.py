"""Stand in for Lambda's Python runtime: run the handler ``_HANDLER`` for each line of standard input, and answer with a line.

A line is ``{"event", "request_id", "arn", "deadline"}``, with the deadline in seconds since 1970. Its answer is ``{"result"}``
or ``{"error": {"errorType", "errorMessage"}}``. This runs with nothing but the standard library and what is deployed.
"""

import importlib
import io
import json
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any


class FaultException(Exception):
    """An error whose type the handler chooses, as in Lambda's runtime."""

    def __init__(self, exception_type: str, message: str, trace: object = None) -> None:
        super().__init__(message)
        self.exception_type = exception_type
        self.trace = trace


class Context:
    """The context object of an invocation."""

    def __init__(self, request_id: str, arn: str, deadline: float) -> None:
        self.aws_request_id = request_id
        self.invoked_function_arn = arn
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.tenant_id = None
        self._deadline = deadline

    def get_remaining_time_in_millis(self) -> int:
        return max(int((self._deadline - time.time()) * 1000), 0)


def main() -> None:
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a handler prints is its log
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    faults = types.ModuleType("awslambdaric.lambda_runtime_exception")
    faults.__dict__["FaultException"] = FaultException
    sys.modules[faults.__name__] = faults
    sys.path[:0] = [os.environ["LAMBDA_TASK_ROOT"], os.environ["LAYERS_PYTHON"]]
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    handler = getattr(importlib.import_module(module.replace("/", ".")), name)
    for line in lines:
        answers.write(json.dumps(answer(handler, json.loads(line))).encode() + b"\n")
        answers.flush()


def answer(handler: Callable[[Any, Context], Any], call: dict[str, Any]) -> dict[str, Any]:
    context = Context(call["request_id"], call["arn"], call["deadline"])
    try:
        return {"result": handler(call["event"], context)}
    except FaultException as error:
        return {"error": {"errorType": error.exception_type, "errorMessage": str(error)}}
    except Exception as error:  # noqa: BLE001 (the edge of a function)
        return {"error": {"errorType": type(error).__name__, "errorMessage": str(error)}}


if __name__ == "__main__":
    main()
