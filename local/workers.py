"""The workers: what the emulated queues, state machines and clock start is done in this process.

The emulator hands each invocation of a function to a URL of ours, as JSON, and waits for the answer. So a worker here is the same
code as in AWS, started by the same things, but beside the server: with one interpreter and one embedding model for both.
"""

import asyncio
import importlib
import json
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final, TypeVar

from infra.workers import WORKERS
from local.message_visibility import MessageVisibility
from spass.aws.log import failure_line, write_line
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import FunctionFailed
from spass.web.worker_function import EventHandler, WorkerFunction

_PREFIX: Final = "spass-local-"  # of the functions' names in local/template.json
_LAST_SECONDS: Final = 30.0  # of a worker's time, left to end in order
_STOP_SECONDS: Final = 3.0

T = TypeVar("T")


class Workers:
    """All workers, in one event loop of their own: as many invocations at a time as the emulator starts.

    What invokes them is told where from the moment this is made, and waits until they are ``serving``.
    """

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Invocation)
        self._server.workers = self
        self._modules = {worker.function_name: f"functions.workers.{worker.module}" for worker in WORKERS}
        self._loop = asyncio.new_event_loop()

    @property
    def urls(self) -> Mapping[str, str]:
        """Return the URL for each function's invocations, by its name in the emulator."""
        port = self._server.server_address[1]
        return {f"{_PREFIX}{name}": f"http://127.0.0.1:{port}/{name}" for name in self._modules}

    @contextmanager
    def serving(self, queues: Iterable[str]) -> Iterator[None]:
        """Work on what comes until the block ends; what is under way then is cut off, as a Lambda is at its deadline.

        ``queues`` are the URLs of those that messages come from. The settings are read from the environment when the first event
        comes.
        """
        self._visibility = MessageVisibility(queues)
        working = threading.Thread(target=self._work, daemon=True)
        working.start()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            working.join(_STOP_SECONDS)

    def invoke(self, name: str, event: Mapping[str, Any], seconds: float) -> Json:
        """What the worker of this name answers to ``event``, which it has so many seconds for.

        Raises:
            CancelledError: the gateway stops.
            KeyError: there is no such worker.
        """
        handler: WorkerFunction = importlib.import_module(self._modules[name]).handler
        deadline = Deadline.after(seconds - _LAST_SECONDS)
        return self._submit(self._worked(handler.work, event, deadline)).result()

    @cached_property
    def _services(self) -> Services:
        return Services()

    async def _worked(self, work: EventHandler, event: Mapping[str, Any], deadline: Deadline) -> Json:
        async with self._visibility.hide(event):
            return await work(self._services, event, deadline)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _work(self) -> None:
        """All invocations, until the loop is stopped; those under way then get an end."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._cut_off())
        self._loop.close()

    async def _cut_off(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if "_services" in self.__dict__:
            await self._services.aclose()
        await self._loop.shutdown_default_executor()


class _Server(ThreadingTCPServer):
    """Not the HTTP server of the standard library, which asks a name server for the name of our own address."""

    daemon_threads = True
    request_queue_size = 128
    workers: Workers


class _Invocation(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seconds = int(self.headers["X-Amzn-Lambda-Deadline-Ms"]) / 1000 - time.time()
        name = self.path.removeprefix("/")
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
        """Invocations that go well are not worth a line on the terminal."""
