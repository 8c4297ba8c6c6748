"""Run an instance of a deployed function: its code at ``/var/task`` and its layers at ``/opt``, read-only, with its variables.

Each instance is a process in a mount namespace of its own. Where this user may not make one, the folders are under a prefix, and
the variables name them there. A short function and a worker run under `infra.rehearsal.runtime`, a streaming function is the
server of its start script, to which a request is forwarded, as Lambda's web adapter does it.
"""

import base64
import contextlib
import hashlib
import http.client
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

from infra.rehearsal.processes import free_port

Json: TypeAlias = Any

_START_SECONDS: Final = 60.0
_RUNTIME: Final = Path(__file__).with_name("runtime.py")
_LISTENING_SECONDS: Final = 0.02
_MOUNTS: Final = """\
set -e
mount --make-rprivate /
if [ {opt} != - ]; then mount --bind {opt} /opt; mount -o remount,bind,ro /opt; fi
exec 7<{code} 8<{python_folder}
mount -t tmpfs tmpfs /var
mkdir -p /var/task /var/lang/bin /var/tmp
ln -s {python} /var/lang/bin/python3
mount --bind /proc/self/fd/7 /var/task
mount -o remount,bind,ro /var/task
exec 7<&- 8<&-
mount -t tmpfs -o mode=1777 tmpfs /tmp
cd /var/task
exec "$@"
"""


class FunctionFailed(Exception):
    """A function did not start, or did not answer before its time limit."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@cache
def can_mount() -> bool:
    """Return whether this user may make a mount namespace, and Lambda's folders can be mounted in it."""
    return _unshare("mount -t tmpfs tmpfs /var && test -d /opt").returncode == 0


def _unshare(script: str) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run([*_namespace(), "sh", "-c", script], check=False, capture_output=True)
    except FileNotFoundError:
        return subprocess.CompletedProcess([], 127)


def _namespace() -> list[str]:
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A function as deployed: its name, handler and variables, the folders of its code and its layers, its time limit."""

    name: str
    arn: str
    handler: str
    memory: int
    seconds: float
    log_group: str
    variables: Mapping[str, str]
    code: Path
    layers: Path | None

    @property
    def streams(self) -> bool:
        """Return whether a server answers, and not a handler."""
        return self.handler == "run.sh"

    def key(self) -> str:
        """Return what instances must have in common to be interchangeable."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


class Instance:
    """A process of one function, which does one invocation at a time."""

    def __init__(self, function: Deployed, *, python: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.function = function
        self.used = time.monotonic()
        self._port = free_port() if function.streams else 0
        self._log = folder / f"{function.name}-{uuid4().hex[:8]}.log"
        self._logged = 0
        self._connection: http.client.HTTPConnection | None = None
        self._prefix = None if can_mount() else folder / f"root-{uuid4().hex[:8]}"
        variables = self._variables(environment)
        command = ["/bin/bash", f"{variables['LAMBDA_TASK_ROOT']}/run.sh"]
        if not function.streams:
            command = [str(python), "-I", "-S", "-c", _RUNTIME.read_text(encoding="utf-8")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._isolated(command, python),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log if function.streams else subprocess.PIPE,
                stderr=log,
            )
        if function.streams:
            try:
                self._wait_until_it_listens()
            except FunctionFailed:
                self.end()
                raise

    def invoke(self, event: Json, request_id: str) -> Json:
        """Return the answer to ``event``.

        Raises:
            FunctionFailed: the function failed, ended or took too long. The instance can do nothing more.
        """
        return self._forward(event) if self.function.streams else self._call(event, request_id)

    def close(self) -> None:
        """Close the connection to the server."""
        if self._connection is not None:
            self._connection.close()

    def end(self) -> None:
        """End the process and what it has started, and remove its files."""
        self.close()
        self._process.kill()
        self._process.wait()
        for stream in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                stream.close()
        if self._prefix is not None:
            shutil.rmtree(self._prefix, ignore_errors=True)

    def new_log(self) -> str:
        """Return what the function has logged since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._logged)
            text = log.read()
        self._logged += len(text)
        return text.decode(errors="replace")

    def _variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        function = self.function
        root = "" if self._prefix is None else str(self._prefix)
        deployed = {
            name: f"{root}{value}" if root and value.startswith("/opt/") else value for name, value in function.variables.items()
        }
        port = {"AWS_LWA_PORT": str(self._port)} if function.streams else {}
        return {
            "PATH": f"{root}/var/lang/bin:/usr/local/bin:/usr/bin:/bin:{root}/opt/bin",
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "HOME": "/tmp",
            "LD_LIBRARY_PATH": f"{root}/opt/lib",
            "LAMBDA_TASK_ROOT": f"{root}/var/task",
            "LAYERS_PYTHON": f"{root}/opt/python",
            "_HANDLER": function.handler,
            "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
            "AWS_LAMBDA_LOG_GROUP_NAME": function.log_group,
            "AWS_LAMBDA_LOG_STREAM_NAME": uuid4().hex,
            **environment,
            **deployed,
            **port,
        }

    def _isolated(self, command: list[str], python: Path) -> list[str]:
        if self._prefix is None:
            opt = "-" if self.function.layers is None else shlex.quote(str(self.function.layers))
            code, found = shlex.quote(str(self.function.code)), shlex.quote(str(python))
            script = _MOUNTS.format(opt=opt, code=code, python=found, python_folder=shlex.quote(str(python.parent)))
            return [*_namespace(), "sh", "-c", script, "sh", *command]
        for name, target in (("var/task", self.function.code), ("opt", self.function.layers), ("var/lang/bin/python3", python)):
            if target is not None:
                (self._prefix / name).parent.mkdir(parents=True, exist_ok=True)
                (self._prefix / name).symlink_to(target)
        return command

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise FunctionFailed("Runtime.ExitError", f"The server of {self.function.name} ended: {self.new_log()[-2000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(_LISTENING_SECONDS)
        raise FunctionFailed("Runtime.ExitError", f"The server of {self.function.name} does not listen.")

    def _call(self, event: Json, request_id: str) -> Json:
        sender, receiver = self._process.stdin, self._process.stdout
        assert sender is not None
        assert receiver is not None
        deadline = time.time() + self.function.seconds
        call = {"event": event, "request_id": request_id, "arn": self.function.arn, "deadline": deadline}
        line = b""
        with contextlib.suppress(OSError):
            sender.write(json.dumps(call).encode() + b"\n")
            sender.flush()
            if not select.select([receiver], [], [], self.function.seconds)[0]:
                raise FunctionFailed("Sandbox.Timedout", f"Task timed out after {self.function.seconds:.2f} seconds")
            line = receiver.readline()
        if not line:
            raise FunctionFailed("Runtime.ExitError", f"{self.function.name} ended: {self.new_log()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise FunctionFailed(answer["error"]["errorType"], answer["error"]["errorMessage"])
        return answer["result"]

    def request(self, event: Json) -> http.client.HTTPResponse:
        """Send the request of API Gateway's event to the server, and return its answer, whose body may still be written.

        Raises:
            FunctionFailed: the server does not answer.
        """
        connection = self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self.function.seconds)
        query = [
            (name, value) for name, values in (event.get("multiValueQueryStringParameters") or {}).items() for value in values
        ]
        target = urllib.parse.quote(event["path"], safe="/%~") + (f"?{urllib.parse.urlencode(query)}" if query else "")
        body = event.get("body") or ""
        content = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
        headers = {name: ", ".join(values) for name, values in (event.get("multiValueHeaders") or {}).items()}
        ours = {"x-amzn-request-context": json.dumps(event["requestContext"]), "content-length": str(len(content))}
        kept = {name: value for name, value in headers.items() if name.lower() not in {*ours, "transfer-encoding", "connection"}}
        try:
            connection.request(event["httpMethod"], target, body=content, headers={**kept, **ours, "connection": "close"})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise FunctionFailed("Runtime.ExitError", f"{self.function.name}: {error}") from error

    def _forward(self, event: Json) -> Json:
        """Return the whole answer of the server."""
        answer = self.request(event)
        body = answer.read()
        self.close()
        return {
            "statusCode": answer.status,
            "multiValueHeaders": headers_of(answer),
            "body": base64.b64encode(body).decode(),
            "isBase64Encoded": True,
        }


def headers_of(answer: http.client.HTTPResponse) -> dict[str, list[str]]:
    """Return the headers of an answer that are not of its connection."""
    collected: dict[str, list[str]] = {}
    for name, value in answer.getheaders():
        if name.lower() not in {"transfer-encoding", "connection"}:
            collected.setdefault(name, []).append(value)
    return collected
