"""The Lambda handler of a worker."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import EventHandler, WorkerFunction, worker_handler


@dataclass
class Context:
    """The context that Lambda gives to a handler."""

    milliseconds: int = 900_000

    def get_remaining_time_in_millis(self) -> int:
        return self.milliseconds


Handle = Callable[[EventHandler], WorkerFunction]


@pytest.fixture
def handle() -> Iterator[Handle]:
    handlers: list[WorkerFunction] = []

    def create(work: EventHandler) -> WorkerFunction:
        handlers.append(worker_handler(work))
        return handlers[-1]

    yield create
    for handler in handlers:
        handler.close()


def test_a_worker_gets_the_event_and_a_deadline(handle: Handle) -> None:
    async def work(_: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        return {"event": event["name"], "seconds": round(deadline.remaining())}

    handler = handle(work)
    assert handler({"name": "first"}, Context()) == {"event": "first", "seconds": 870}  # type: ignore[arg-type]
    assert handler({"name": "late"}, Context(20_000)) == {"event": "late", "seconds": 0}  # type: ignore[arg-type]


def test_all_events_use_the_same_loop_and_services(handle: Handle) -> None:
    calls: list[object] = []

    async def work(services: Services, _: Mapping[str, Any], __: Deadline) -> Json:
        calls.append((asyncio.get_running_loop(), services))
        return None

    handler = handle(work)
    handler({}, Context())  # type: ignore[arg-type]
    handler({}, Context())  # type: ignore[arg-type]
    assert calls[0] == calls[1]


def test_events_of_several_threads_run_one_at_a_time(handle: Handle) -> None:
    busy = threading.Lock()

    async def work(_: Services, event: Mapping[str, Any], __: Deadline) -> Json:
        assert busy.acquire(blocking=False)
        await asyncio.sleep(0.01)
        busy.release()
        return int(event["n"])

    handler = handle(work)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda n: handler({"n": n}, Context()), range(8))) == list(range(8))  # type: ignore[arg-type]


def test_an_exception_of_the_work_fails_the_function(handle: Handle) -> None:
    async def work(_: Services, __: Mapping[str, Any], ___: Deadline) -> Json:
        raise ValueError("no")

    handler = handle(work)
    for _ in range(2):  # the loop also works after a failure
        with pytest.raises(ValueError, match="no"):
            handler({}, Context())  # type: ignore[arg-type]
