"""A client of Lambda that runs the handler of the sandbox's function in a process of its own, as Lambda would."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from botocore.exceptions import ClientError, ReadTimeoutError

import spass.sandbox
from spass.aws.functions import InvokeResponse

FOLDER: Final = Path(spass.sandbox.__file__).parent
_PROGRAM: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
import function

class Context:
    def get_remaining_time_in_millis(self):
        return float(sys.argv[2]) * 1000

json.dump(function.handler(json.load(sys.stdin), Context()), sys.stdout)
"""

Fault: TypeAlias = Callable[["FunctionClient", bytes], InvokeResponse]


@dataclass
class FunctionClient:
    """A boto3 client. Each of the ``faults`` replaces one invocation. ``seconds`` is the time limit of the function."""

    python: str = sys.executable
    seconds: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    invoked: list[tuple[str, str]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def invoke(self, *, FunctionName: str, TenantId: str, Payload: bytes) -> InvokeResponse:  # noqa: N803
        self.invoked.append((FunctionName, TenantId))
        self.payloads.append(Payload)
        return self.faults.pop(0)(self, Payload) if self.faults else self.run(Payload)

    def run(self, payload: bytes) -> InvokeResponse:
        """Run the handler. A crash of its process is the function's error."""
        command = [self.python, "-c", _PROGRAM, str(FOLDER), str(self.seconds)]
        done = subprocess.run(
            command, input=payload, capture_output=True, check=False, env={"PYTHONDONTWRITEBYTECODE": "1", **self.environment}
        )
        if done.returncode:
            return failed("Runtime.ExitError", done.stderr.decode())
        return {"Payload": io.BytesIO(done.stdout)}


def failed(kind: str | None, message: str = "") -> InvokeResponse:
    """Return the response of a function that failed."""
    failure = {"errorMessage": message, **({"errorType": kind} if kind else {})}
    return {"FunctionError": "Unhandled", "Payload": io.BytesIO(json.dumps(failure).encode())}


def refuse(code: str, status: int) -> Fault:
    """Return a fault: Lambda refuses the invocation."""

    def fault(_: FunctionClient, __: bytes) -> InvokeResponse:
        raise ClientError({"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Invoke")  # type: ignore[typeddict-item]

    return fault


def lose_reply(client: FunctionClient, payload: bytes) -> InvokeResponse:
    """Run the function, and lose its answer."""
    client.run(payload)
    raise ReadTimeoutError(endpoint_url="https://lambda.invalid")


def answer(payload: object) -> Fault:
    """Return a fault: the function answers ``payload``."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return lambda _, __: {"Payload": io.BytesIO(content)}


def fail(kind: str | None, message: str = "") -> Fault:
    """Return a fault: the function fails."""
    return lambda _, __: failed(kind, message)
