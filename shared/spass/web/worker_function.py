"""The Lambda handler of a worker: a function that a queue, a state machine or a schedule invokes."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

from mangum.types import LambdaContext

from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import WarmUp, in_lambda, log_failure, log_startup_failure

_SHUTDOWN_SECONDS: Final = 30.0  # between the deadline of the work and the end of the invocation, for an orderly shutdown

EventHandler: TypeAlias = Callable[[Services, Mapping[str, Any], Deadline], Awaitable[Json]]
"""Handle one event until the deadline, and return the answer to the invoker."""


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
