"""Run the workers that the emulated queues, state machine and schedule invoke, in this process.

The emulator sends each invocation of a function to a URL of this process, as JSON, and waits for the answer. So a worker here
runs the same code as in AWS, with the same triggers, but shares the interpreter and the embedding model with the server.
The URLs contain a secret of this start: no page and no other user of this machine can invoke a worker.
"""

import asyncio
import hmac
import importlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from email.message import Message
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final, TypeVar

from infra.workers import WORKERS
from local.message_visibility import MessageVisibility
from local.server import LocalServices
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.redaction.log import failure_line, write_line
from spass.web.services import Services
from spass.web.startup import EventHandler, FunctionFailed, WorkerFunction

_PREFIX: Final = "spass-local-"  # of the functions' names in local/template.json
_MARGIN_SECONDS: Final = 30.0  # before a worker's timeout, reserved for a clean end
_STOP_SECONDS: Final = 3.0
_HEAD_SECONDS: Final = 10.0  # until a connection has sent the secret
_STRANGERS: Final = 32  # connections that have not sent the secret

T = TypeVar("T")


class Workers:
    """All workers, in one event loop. They run as many invocations at once as the emulator sends.

    ``urls`` is valid from the start. An invocation waits until the workers are ``serving``.
    """

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Invocation)
        self._server.workers = self
        self._secret = secrets.token_urlsafe(30)
        self._modules = {worker.function_name: f"functions.workers.{worker.module}" for worker in WORKERS}
        self._loop = asyncio.new_event_loop()

    @property
    def urls(self) -> Mapping[str, str]:
        """Return the URL for each function's invocations, by its name in the emulator."""
        return {f"{_PREFIX}{name}": f"http://{self._host}/{self._secret}/{name}" for name in self._modules}

    @property
    def _host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def invocation_target(self, path: str, headers: Message) -> str | None:
        """Return the worker that a request to ``path`` may invoke, or None if the emulator did not send it."""
        _, _, rest = path.partition("/")
        secret, _, name = rest.partition("/")
        is_emulator = hmac.compare_digest(secret.encode(), self._secret.encode()) and headers.get_all("Host") == [self._host]
        return name if is_emulator and "Origin" not in headers and name in self._modules else None

    @contextmanager
    def serving(self, queues: Iterable[str]) -> Iterator[None]:
        """Run invocations until the block ends, then cancel those in flight, as AWS does at a Lambda's timeout.

        ``queues`` are the URLs of the queues that messages come from. The first invocation reads the settings from the
        environment.
        """
        self._visibility = MessageVisibility(queues)
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(_STOP_SECONDS)

    def invoke(self, name: str, event: Mapping[str, Any], seconds: float) -> Json:
        """Run the worker ``name`` with ``event`` and return its answer. The worker's timeout is ``seconds``.

        Raises:
            CancelledError: the gateway stops.
            KeyError: there is no such worker.
        """
        handler: WorkerFunction = importlib.import_module(self._modules[name]).handler
        deadline = Deadline.after(seconds - _MARGIN_SECONDS)
        return self._submit(self._run(handler.work, event, deadline)).result()

    @cached_property
    def _services(self) -> Services:
        return LocalServices()

    async def _run(self, work: EventHandler, event: Mapping[str, Any], deadline: Deadline) -> Json:
        async with self._visibility.hide(event):
            return await work(self._services, event, deadline)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _work(self) -> None:
        """Run the event loop until ``serving`` stops it, then cancel the invocations in flight."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._cancel_all())
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if "_services" in self.__dict__:
            await self._services.aclose()
        await self._loop.shutdown_default_executor()


class _Server(ThreadingTCPServer):
    """A TCP server for HTTP. The standard library's HTTPServer would look up the name of its own address by DNS."""

    daemon_threads = True
    request_queue_size = 128
    workers: Workers

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        # Each has a thread, and any user of this machine can connect. The values are times, oldest first.
        self._strangers: dict[socket.socket, float] = {}
        self._strangers_lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # the signature of the base class
        with self._strangers_lock:
            self._strangers[request] = time.monotonic()
            if len(self._strangers) > _STRANGERS:
                self._disconnect_oldest()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Disconnect those that have not sent the secret in time. The server calls this several times a second."""
        overdue = time.monotonic() - _HEAD_SECONDS
        with self._strangers_lock:
            while self._strangers and next(iter(self._strangers.values())) < overdue:
                self._disconnect_oldest()

    def trust(self, connection: socket.socket) -> bool:
        """Bound this connection no longer: a run takes minutes. Return False if it was disconnected before."""
        with self._strangers_lock:
            return self._strangers.pop(connection, None) is not None

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  # the signature of the base class
        with self._strangers_lock:
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def _disconnect_oldest(self) -> None:
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        with suppress(OSError):  # the client has gone
            oldest.shutdown(socket.SHUT_RDWR)


class _Invocation(BaseHTTPRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):  # the client has gone
            super().handle()

    def do_POST(self) -> None:
        name = self.server.workers.invocation_target(self.path, self.headers)
        if name is None:
            self.close_connection = True
            self._answer(403, {"errorType": "AccessDenied"})
            return
        if not self.server.trust(self.connection):
            self.close_connection = True
            return
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seconds = int(self.headers["X-Amzn-Lambda-Deadline-Ms"]) / 1000 - time.time()
        try:
            self._answer(200, self.server.workers.invoke(name, event, seconds))
        except CancelledError:
            self._answer(503, {"errorType": "Stopped"})
        except Exception as error:  # noqa: BLE001  # the edge: here Lambda would say that the function failed
            write_line({**failure_line(error, ""), "event": "worker_failed", "worker": name})
            self._answer(500, {"errorType": type(error).__name__, "errorMessage": str(FunctionFailed.__doc__)})

    def _answer(self, status: int, body: Json) -> None:
        answer = json.dumps(body).encode()
        with suppress(OSError):  # the emulator has gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do not print a line for each invocation."""
