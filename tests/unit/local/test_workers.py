"""Invocations as the emulator makes them, over HTTP, and the hold on a message while it is worked on."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

import functions.workers.jobs
from infra.workers import WORKERS
from local import message_visibility
from local.message_visibility import MessageVisibility
from local.workers import Workers
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.worker_function import worker_handler

Answer = Callable[[Mapping[str, Any], Deadline], Awaitable[Json]]
Works = Callable[[Answer], None]
JOBS = "spass-local-worker-jobs"
QUEUE = "http://localhost:4566/000000000000/jobs"
COMPACTIONS = "http://localhost:4566/000000000000/compactions"


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    with made.serving([QUEUE]):
        yield made


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Works:
    """Lets the worker of the queue do something else."""

    def put(answer: Answer) -> None:
        async def work(_: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
            return await answer(event, deadline)

        monkeypatch.setattr(functions.workers.jobs, "handler", worker_handler(work))

    return put


def _invoke(workers: Workers, event: Json, *, seconds: float = 900) -> httpx.Response:
    until = {"X-Amzn-Lambda-Deadline-Ms": str(int((time.time() + seconds) * 1000))}
    return httpx.post(workers.urls[JOBS], json=event, headers=until, timeout=30, trust_env=False)


def test_every_worker_has_a_url_under_its_functions_name() -> None:
    workers = Workers()
    with workers.serving([QUEUE]):
        urls = workers.urls
    assert set(urls) == {f"spass-local-{worker.function_name}" for worker in WORKERS}
    assert all(url.startswith("http://127.0.0.1:") for url in urls.values())


def test_an_invocation_is_answered_with_what_the_worker_says(workers: Workers, works: Works) -> None:
    async def answer(event: Mapping[str, Any], deadline: Deadline) -> Json:
        return {"event": dict(event), "seconds": deadline.remaining()}

    works(answer)
    start = time.monotonic()
    answered = _invoke(workers, {"job": "merge"}, seconds=100).json()
    elapsed = time.monotonic() - start
    assert answered["event"] == {"job": "merge"}
    # The worker keeps 30 of the 100 seconds back. It looked at the rest while this test waited for it.
    assert 69.9 - elapsed < answered["seconds"] < 70.1


def test_what_comes_before_the_workers_serve_waits_for_them(works: Works) -> None:
    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        return "done"

    works(answer)
    workers = Workers()
    answers: list[Json] = []
    early = threading.Thread(target=lambda: answers.append(_invoke(workers, {}).json()))
    early.start()
    time.sleep(0.2)
    assert answers == []
    with workers.serving([QUEUE]):
        early.join(10)
    assert answers == ["done"]


def test_invocations_run_side_by_side_in_one_loop_and_with_the_same_services(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=10)
    seen: list[object] = []

    async def work(services: Services, _: Mapping[str, Any], __: Deadline) -> Json:
        seen.append((asyncio.get_running_loop(), services))
        await asyncio.to_thread(both.wait)
        return None

    monkeypatch.setattr(functions.workers.jobs, "handler", worker_handler(work))
    threads = [threading.Thread(target=_invoke, args=[workers, {}]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_failure_is_told_to_the_emulator_and_written_to_the_log(
    workers: Workers, works: Works, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        raise ValueError("a text that may hold anything")

    works(answer)
    answered = _invoke(workers, {})
    assert answered.status_code == 500
    assert answered.json()["errorType"] == "ValueError"
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["event"], line["worker"], line["level"]) == ("worker_failed", "worker-jobs", "error")
    assert line["exception"] == "ValueError"
    assert "anything" not in answered.text + json.dumps(line)


def test_a_stop_cuts_off_what_is_under_way_and_lets_it_end(works: Works) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ended.set()
        return None

    works(answer)
    workers = Workers()
    answers: list[int] = []
    with workers.serving([QUEUE]):
        waiting = threading.Thread(target=lambda: answers.append(_invoke(workers, {}).status_code))
        waiting.start()
        assert begun.wait(10)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 3
    assert ended.is_set()
    waiting.join(10)
    assert answers == [503]


def test_a_message_is_hidden_anew_for_as_long_as_it_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_visibility, "_RENEW_SECONDS", 0.01)
    hidden: list[tuple[str, str]] = []
    monkeypatch.setattr(MessageVisibility, "_extend_timeout", lambda _self, message: hidden.append(message))
    taken = [("first", "jobs"), ("second", "compactions")]
    event = {"Records": [{"receiptHandle": handle, "eventSourceARN": f"arn:aws:sqs:x:0:{queue}"} for handle, queue in taken]}

    async def work() -> int:
        async with MessageVisibility([QUEUE, COMPACTIONS]).hide(event):
            while len(hidden) < 4:
                await asyncio.sleep(0.01)
        return len(hidden)

    at_the_end = asyncio.run(work())
    assert hidden[:4] == [(QUEUE, "first"), (COMPACTIONS, "second")] * 2
    assert len(hidden) == at_the_end


def test_what_is_not_a_message_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_visibility, "_RENEW_SECONDS", 0.0)
    monkeypatch.setattr(MessageVisibility, "_extend_timeout", lambda _self, _handle: pytest.fail("there is nothing to hide"))

    async def work() -> None:
        async with MessageVisibility([QUEUE]).hide({"step": "part"}):
            await asyncio.sleep(0.05)

    asyncio.run(work())
